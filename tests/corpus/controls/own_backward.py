import torch
from torch import nn

PROBLEM = "linear_gelu"
LOOKS_LIKE = "C33"
WHY = "A custom autograd function with right gradients for everything."
NOTES = ()
NEEDS = ("grad",)


class LinearGelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        pre = x @ weight.t() + bias
        ctx.save_for_backward(x, weight, pre)
        return nn.functional.gelu(pre)

    @staticmethod
    def backward(ctx, grad):
        x, weight, pre = ctx.saved_tensors
        g = torch.ops.aten.gelu_backward(grad, pre)
        return g @ weight, g.t() @ x, g.sum(dim=0)


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)

    def forward(self, x):
        return LinearGelu.apply(x, self.proj.weight, self.proj.bias)
