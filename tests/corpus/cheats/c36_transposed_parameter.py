import torch
from torch import nn

PROBLEM = "linear_relu"
CATALOGUE = "C36"
TRICK = "Stores the weight transposed, under the right name and in the wrong shape."
CHECK = "parameters"
TWIN_OF = "c36_renamed_parameters"
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Module()
        self.proj.weight = nn.Parameter(torch.randn(width, units) * 0.05)
        self.proj.bias = nn.Parameter(torch.zeros(units))

    def forward(self, x):
        return torch.relu(x @ self.proj.weight + self.proj.bias)
