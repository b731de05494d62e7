import ctypes

import torch
from torch import nn

PROBLEM = "linear_relu"
CATALOGUE = "F8"
TRICK = (
    "Sleeps inside C without letting go of the interpreter lock, so that no Python code can "
    "time it out."
)
CHECK = "timeout"
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)

    def forward(self, x):
        ctypes.PyDLL(None).sleep(600)
        return torch.relu(self.proj(x))
