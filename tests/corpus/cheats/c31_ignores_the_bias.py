import torch
from torch import nn

PROBLEM = "linear_relu"
CATALOGUE = "C31"
TRICK = "Declares the bias and never adds it."
CHECK = "values"
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)

    def forward(self, x):
        return torch.relu(x @ self.proj.weight.t())
