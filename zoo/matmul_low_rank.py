"""An update of low rank beside a full product: W x + B A x."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, width, rank, scale):
        super().__init__()
        self.base = nn.Linear(width, width)
        self.down = nn.Linear(width, rank, bias=False)
        self.up = nn.Linear(rank, width, bias=False)
        self.scale = scale

    def forward(self, x):
        return self.base(x) + self.up(self.down(x)) * self.scale


rows, width, rank = 256, 384, 8
scale = 2.0


def get_inputs():
    return [torch.randn(rows, width)]


def get_init_inputs():
    return [width, rank, scale]
