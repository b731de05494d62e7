"""A convolution with an oblong kernel, stride, dilation and groups."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, channels, out_channels, groups):
        super().__init__()
        self.conv = nn.Conv2d(
            channels,
            out_channels,
            (3, 5),
            stride=(2, 1),
            padding=(1, 4),
            dilation=(1, 2),
            groups=groups,
        )

    def forward(self, x):
        return F.gelu(self.conv(x))


batch_size, channels, out_channels, height, width = 4, 16, 32, 40, 56
groups = 4


def get_inputs():
    return [torch.rand(batch_size, channels, height, width)]


def get_init_inputs():
    return [channels, out_channels, groups]
