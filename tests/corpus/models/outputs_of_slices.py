"""Outputs that are slices and chunks, of the input and of a result that a kernel reads too."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x):
        y = self.linear(x)
        a, b = y.chunk(2, dim=1)
        c = x[:, :3]
        return a, torch.relu(b), y, c, c * 2.0, x[1]


batch_size = 4


def get_inputs():
    return [torch.randn(batch_size, 6)]


def get_init_inputs():
    return []
