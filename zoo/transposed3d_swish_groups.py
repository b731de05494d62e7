"""A grouped transposed convolution of a volume, swish, GroupNorm, hardswish."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, channels, out_channels, groups):
        super().__init__()
        self.conv = nn.ConvTranspose3d(channels, out_channels, 3, stride=2, groups=groups)
        self.norm = nn.GroupNorm(groups, out_channels, eps=1e-4)

    def forward(self, x):
        x = self.conv(x)
        return F.hardswish(self.norm(torch.sigmoid(x) * x))


batch_size, channels, out_channels, side = 4, 8, 16, 8
groups = 4


def get_inputs():
    return [torch.rand(batch_size, channels, side, side, side)]


def get_init_inputs():
    return [channels, out_channels, groups]
