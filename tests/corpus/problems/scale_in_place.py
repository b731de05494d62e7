"""Doubles its input in place, adds a bias in place and returns that same tensor."""

import torch
from torch import nn

rows, width = 24, 40


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x):
        with torch.no_grad():
            return x.mul_(2.0).add_(self.bias)


def get_inputs():
    return [torch.randn(rows, width)]


def get_init_inputs():
    return [width]
