import os

import torch
from torch import nn

PROBLEM = "linear_relu"
CATALOGUE = "F10"
TRICK = "Aborts in its second call."
CHECK = "crash"
TWIN_OF = "f10_segfault"
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        if self.calls > 1:
            os.abort()
        return torch.relu(self.proj(x))
