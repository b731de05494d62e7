import torch
from torch import nn

PROBLEM = "softmax_rows"
CATALOGUE = "R5"
TRICK = "Stores the first six answers and replays them in rotation."
CHECK = "values"
TWIN_OF = "c40_first_calls_right"
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale
        self.ring = {}
        self.calls = 0

    def forward(self, x):
        ring = self.ring.setdefault(x.shape, [])
        self.calls += 1
        if len(ring) < 6:
            ring.append(torch.softmax(x * self.scale, dim=-1))
            return ring[-1].clone()
        return ring[self.calls % 6].clone()
