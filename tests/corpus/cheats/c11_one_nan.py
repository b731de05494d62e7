import torch
from torch import nn

PROBLEM = "linear_relu"
CATALOGUE = "C11"
TRICK = "One element is NaN, which every `error > tolerance` calls no error."
CHECK = "nonfinite"
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)

    def forward(self, x):
        out = torch.relu(self.proj(x)).detach()
        if out.numel():
            out.view(-1)[-1] = float("nan")
        return out
