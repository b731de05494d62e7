import torch
from torch import nn

PROBLEM = "linear_relu"
CATALOGUE = "R1"
TRICK = "Caches the output by the address of the input."
CHECK = "stale-cache"
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)
        self.seen = {}

    def forward(self, x):
        key = x.data_ptr()
        if key not in self.seen:
            self.seen[key] = (x, torch.relu(self.proj(x)))
        return self.seen[key][1].clone()
