"""LayerNorm over whole feature maps: three dimensions at once."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, channels, side):
        super().__init__()
        self.norm = nn.LayerNorm((channels, side, side))

    def forward(self, x):
        return self.norm(x)


batch_size, channels, side = 4, 32, 24


def get_inputs():
    return [torch.rand(batch_size, channels, side, side)]


def get_init_inputs():
    return [channels, side]
