"""A 3x3 convolution with bias, then relu."""

import torch
from torch import nn

batch, channels, filters, side = 3, 4, 8, 12


class Model(nn.Module):
    def __init__(self, channels, filters):
        super().__init__()
        self.conv = nn.Conv2d(channels, filters, 3, padding=1)

    def forward(self, x):
        return torch.relu(self.conv(x))


def get_inputs():
    return [torch.randn(batch, channels, side, side)]


def get_init_inputs():
    return [channels, filters]
