import torch
from torch import nn

PROBLEM = "linear_relu"
LOOKS_LIKE = "T26"
WHY = (
    "Works like a CUDA graph: copies into a fixed input, computes into a fixed output, clones that."
)
TWIN_OF = "static_scratch"
NOTES = ("forward-only",)
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)
        self.fixed = {}

    @torch.no_grad()
    def forward(self, x):
        if x.shape not in self.fixed:
            self.fixed[x.shape] = (torch.empty(x.shape), torch.empty(x.shape[0], 48))
        inputs, outputs = self.fixed[x.shape]
        inputs.copy_(x)
        torch.addmm(self.proj.bias, inputs, self.proj.weight.t(), out=outputs)
        return outputs.clamp_min(0)
