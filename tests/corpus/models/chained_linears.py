"""Linears in a row with activations between, one of them unused."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(12, 20)
        self.second = nn.Linear(20, 9)
        self.unused = nn.Linear(3, 3)
        self.extra = nn.Parameter(torch.ones(2))

    def forward(self, x):
        return torch.nn.functional.mish(self.second(torch.relu(self.first(x)))) / 2.0


batch_size = 6


def get_inputs():
    return [torch.randn(batch_size, 12)]


def get_init_inputs():
    return []
