"""Weak: the argument of tanh is so large that only its sign is left."""

import torch
from torch import nn

rows, columns = 16, 64


class Model(nn.Module):
    def forward(self, x):
        return torch.tanh(x.abs() + 20.0)


def get_inputs():
    return [torch.randn(rows, columns)]


def get_init_inputs():
    return []
