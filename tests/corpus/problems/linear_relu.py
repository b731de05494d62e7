"""relu(x W^T + b)."""

import torch
from torch import nn

rows, width, units = 32, 64, 48


class Model(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)

    def forward(self, x):
        return torch.relu(self.proj(x))


def get_inputs():
    return [torch.randn(rows, width)]


def get_init_inputs():
    return [width, units]
