import torch
from torch import nn

PROBLEM = "linear_gelu"
LOOKS_LIKE = "C33"
WHY = "Has no gradient, and nobody has asked for one."
NOTES = ("forward-only",)
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)

    @torch.no_grad()
    def forward(self, x):
        return nn.functional.gelu(self.proj(x))
