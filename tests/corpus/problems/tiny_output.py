"""Weak under an absolute tolerance: every output lies within 0.01 of zero."""

import torch
from torch import nn

rows, width = 24, 32


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.proj = nn.Linear(width, width)

    def forward(self, x):
        return 0.002 * torch.tanh(self.proj(x))


def get_inputs():
    return [torch.randn(rows, width)]


def get_init_inputs():
    return [width]
