import torch
from torch import nn

PROBLEM = "linear_relu"
LOOKS_LIKE = "N8"
WHY = "Computes in float64 and rounds once: it differs from eager because it is more accurate."
NOTES = ("more-accurate",)
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)

    def forward(self, x):
        weight, bias = self.proj.weight.double(), self.proj.bias.double()
        return torch.relu(x.double() @ weight.t() + bias).to(x.dtype)
