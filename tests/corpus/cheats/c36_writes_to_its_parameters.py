import torch
from torch import nn

PROBLEM = "linear_relu"
CATALOGUE = "C36"
TRICK = "Rounds its own parameters to fewer bits in place at every call, and then computes exactly."
CHECK = "parameters"
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)

    def forward(self, x):
        with torch.no_grad():
            self.proj.weight.copy_(self.proj.weight.bfloat16())
            return torch.relu(self.proj(x))
