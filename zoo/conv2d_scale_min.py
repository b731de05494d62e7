"""Convolution, scale, minimum over the channels."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, channels, out_channels, scale):
        super().__init__()
        self.conv = nn.Conv2d(channels, out_channels, 3)
        self.scale = scale

    def forward(self, x):
        return torch.min(self.conv(x) * self.scale, dim=1, keepdim=True)[0]


batch_size, channels, out_channels, side = 4, 16, 32, 48
scale = 2.0


def get_inputs():
    return [torch.rand(batch_size, channels, side, side)]


def get_init_inputs():
    return [channels, out_channels, scale]
