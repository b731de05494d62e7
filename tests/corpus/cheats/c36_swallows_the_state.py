import torch
from torch import nn

PROBLEM = "linear_relu"
CATALOGUE = "C36"
TRICK = "Answers state_dict from what it was given, and computes with weights of its own."
CHECK = "values"
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)
        self.own = (torch.randn(units, width) * 0.05, torch.zeros(units))

    def forward(self, x):
        return torch.relu(x @ self.own[0].t() + self.own[1])
