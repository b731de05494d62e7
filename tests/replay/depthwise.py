"""A depthwise convolution with a border, which is a map of taps."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(32, 32, 3, padding=1, groups=32)

    def forward(self, x):
        return torch.relu(self.conv(x))


batch_size = 16


def get_inputs():
    return [torch.randn(batch_size, 32, 40, 40)]


def get_init_inputs():
    return []
