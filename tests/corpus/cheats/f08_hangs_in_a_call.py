import time

import torch
from torch import nn

PROBLEM = "linear_relu"
CATALOGUE = "F8"
TRICK = "Never returns from its third call."
CHECK = "timeout"
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        while self.calls > 2:
            time.sleep(1)
        return torch.relu(self.proj(x))
