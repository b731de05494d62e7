import atexit
import os

import torch
from torch import nn

PROBLEM = "linear_relu"
LOOKS_LIKE = "F11"
WHY = "Everything is right, and then the process dies in a clean-up handler."
NOTES = ()
NEEDS = ()


atexit.register(os.abort)


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)

    def forward(self, x):
        return torch.relu(self.proj(x))
