import torch
from torch import nn

PROBLEM = "linear_relu"
CATALOGUE = "F15"
TRICK = "Keeps sixteen megabytes of every call for ever."
CHECK = "resources"
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)
        self.kept = []

    def forward(self, x):
        self.kept.append(torch.ones(1 << 22))
        return torch.relu(self.proj(x))
