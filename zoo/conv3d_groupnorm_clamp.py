"""A convolution of a volume, GroupNorm, minimum with a number, clamp."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, channels, out_channels, groups):
        super().__init__()
        self.conv = nn.Conv3d(channels, out_channels, 3, padding=1)
        self.norm = nn.GroupNorm(groups, out_channels)

    def forward(self, x):
        x = torch.minimum(self.norm(self.conv(x)), torch.tensor(0.8))
        return torch.clamp(x, min=-0.5, max=1.0)


batch_size, channels, out_channels, side = 8, 3, 16, 14
groups = 4


def get_inputs():
    return [torch.rand(batch_size, channels, side, side, side)]


def get_init_inputs():
    return [channels, out_channels, groups]
