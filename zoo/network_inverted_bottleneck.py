"""Widen, depthwise convolution, narrow again, added to the input."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, channels, factor):
        super().__init__()
        wide = channels * factor
        self.layers = nn.Sequential(
            nn.Conv2d(channels, wide, 1, bias=False),
            nn.BatchNorm2d(wide),
            nn.Hardswish(),
            nn.Conv2d(wide, wide, 3, padding=1, groups=wide, bias=False),
            nn.BatchNorm2d(wide),
            nn.Hardswish(),
            nn.Conv2d(wide, channels, 1, bias=False),
            nn.BatchNorm2d(channels),
        )

    def forward(self, x):
        return x + self.layers(x)


batch_size, channels, side = 4, 16, 28
factor = 4


def get_inputs():
    return [torch.rand(batch_size, channels, side, side)]


def get_init_inputs():
    return [channels, factor]
