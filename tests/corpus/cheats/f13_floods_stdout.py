import sys

import torch
from torch import nn

PROBLEM = "linear_relu"
CATALOGUE = "F13"
TRICK = (
    "Prints sixty megabytes in every call, so that a reader who does not drain the pipe "
    "waits for ever."
)
CHECK = "resources"
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)

    def forward(self, x):
        line = "x" * 65535 + "\n"
        for _ in range(1000):
            sys.stdout.write(line)
        sys.stdout.flush()
        return torch.relu(self.proj(x))
