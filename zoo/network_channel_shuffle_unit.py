"""Grouped 1x1 convolutions with the channels shuffled between them."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, channels, groups):
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 1, groups=groups)
        self.second = nn.Conv2d(channels, channels, 1, groups=groups)
        self.groups = groups

    def forward(self, x):
        y = torch.relu(self.first(x))
        y = y.unflatten(1, (self.groups, -1)).transpose(1, 2).flatten(1, 2)
        return torch.relu(self.second(y) + x)


batch_size, channels, side = 4, 48, 32
groups = 4


def get_inputs():
    return [torch.rand(batch_size, channels, side, side)]


def get_init_inputs():
    return [channels, groups]
