"""A depthwise convolution, then one across channels, each with BatchNorm in train mode."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, channels, out_channels):
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 3, padding=1, groups=channels, bias=False)
        self.norm = nn.BatchNorm2d(channels)
        self.pointwise = nn.Conv2d(channels, out_channels, 1, bias=False)
        self.last_norm = nn.BatchNorm2d(out_channels)

    def forward(self, x):
        x = F.relu6(self.norm(self.depthwise(x)))
        return F.relu6(self.last_norm(self.pointwise(x)))


batch_size, channels, out_channels, side = 4, 32, 64, 32


def get_inputs():
    return [torch.rand(batch_size, channels, side, side)]


def get_init_inputs():
    return [channels, out_channels]
