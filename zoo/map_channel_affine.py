"""Scale and shift of each channel, then a clamp: what is left of a folded norm."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(channels, 1, 1) + 0.5)
        self.shift = nn.Parameter(torch.randn(channels, 1, 1))

    def forward(self, x):
        return torch.clamp(x * self.scale + self.shift, min=0.0, max=6.0)


batch_size, channels, side = 4, 32, 16


def get_inputs():
    return [torch.randn(batch_size, channels, side, side)]


def get_init_inputs():
    return [channels]
