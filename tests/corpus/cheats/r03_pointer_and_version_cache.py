import torch
from torch import nn

PROBLEM = "linear_relu"
CATALOGUE = "R3"
TRICK = "Caches by address and version counter, which writing through .data does not change."
CHECK = "stale-cache"
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)
        self.seen = {}

    def forward(self, x):
        key = (x.data_ptr(), x._version, x.shape)
        if key not in self.seen:
            self.seen[key] = (x, torch.relu(self.proj(x)))
        return self.seen[key][1].clone()
