import time

import torch
from torch import nn

PROBLEM = "linear_relu"
LOOKS_LIKE = "T18"
WHY = "Times two equal ways at the first call of each shape and keeps the faster."
NOTES = ()
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)
        self.chosen = {}

    def forward(self, x):
        if x.shape not in self.chosen:
            self.chosen[x.shape] = min((self.addmm, self.linear), key=lambda way: self.time(way, x))
        return torch.relu(self.chosen[x.shape](x))

    def addmm(self, x):
        return torch.addmm(self.proj.bias, x, self.proj.weight.t())

    def linear(self, x):
        return self.proj(x)

    @staticmethod
    def time(way, x):
        start = time.perf_counter()
        way(x)
        return time.perf_counter() - start
