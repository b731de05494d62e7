import torch
from torch import nn

PROBLEM = "linear_relu"
CATALOGUE = "F24"
TRICK = "Right answers, and PyTorch's random numbers moved on, which eager leaves alone."
CHECK = "global-state"
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)

    def forward(self, x):
        out = torch.relu(self.proj(x))
        torch.rand(1)
        return out
