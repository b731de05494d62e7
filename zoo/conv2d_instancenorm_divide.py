"""Convolution, InstanceNorm, division, max pooling."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, channels, out_channels, divisor):
        super().__init__()
        self.conv = nn.Conv2d(channels, out_channels, 3)
        self.norm = nn.InstanceNorm2d(out_channels)
        self.divisor = divisor

    def forward(self, x):
        return F.max_pool2d(self.norm(self.conv(x)) / self.divisor, 2)


batch_size, channels, out_channels, side = 4, 16, 32, 48
divisor = 2.0


def get_inputs():
    return [torch.rand(batch_size, channels, side, side)]


def get_init_inputs():
    return [channels, out_channels, divisor]
