"""Raises when it is run."""

import torch
import torch.nn as nn

sizes = {"width": 8}
width = sizes["depth"]  # here


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x):
        return self.linear(x)


def get_inputs():
    return [torch.rand(batch_size, width)]


def get_init_inputs():
    return [width]
