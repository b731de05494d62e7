import torch
from torch import nn

PROBLEM = "linear_relu"
CATALOGUE = "F12"
TRICK = "Takes up to twelve gigabytes, a piece at a time, and answers rightly."
CHECK = "resources"
NEEDS = ("memory",)


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)

    def forward(self, x):
        held = []
        try:
            for _ in range(96):
                held.append(torch.ones(1 << 25))
        except (MemoryError, RuntimeError):
            held.clear()
        return torch.relu(self.proj(x))
