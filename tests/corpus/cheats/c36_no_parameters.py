import torch
from torch import nn

PROBLEM = "linear_relu"
CATALOGUE = "C36"
TRICK = "Has no parameters at all, only constants."
CHECK = "parameters"
TWIN_OF = "c36_renamed_parameters"
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.weight = torch.randn(units, width) * 0.05

    def forward(self, x):
        return torch.relu(x @ self.weight.t())
