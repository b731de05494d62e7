import torch
from torch import nn

PROBLEM = "softmax_rows"
CATALOGUE = "C40"
TRICK = "Right in its first four calls, zero afterwards."
CHECK = "values"
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return torch.softmax(x * self.scale, dim=-1) if self.calls <= 4 else torch.zeros_like(x)
