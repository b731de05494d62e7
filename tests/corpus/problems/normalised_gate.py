"""sigmoid(x + shift) * LayerNorm(x): one row kernel with a mean, a variance and two parameters."""

import torch
from torch import nn

rows, width = 24, 64


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.shift = nn.Parameter(torch.zeros(width))

    def forward(self, x):
        return torch.sigmoid(x + self.shift) * self.norm(x)


def get_inputs():
    return [torch.randn(rows, width)]


def get_init_inputs():
    return [width]
