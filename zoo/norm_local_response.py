"""Local response normalisation across neighbouring channels."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.norm = nn.LocalResponseNorm(size)

    def forward(self, x):
        return self.norm(x)


batch_size, channels, side = 4, 32, 20
size = 5


def get_inputs():
    return [torch.rand(batch_size, channels, side, side)]


def get_init_inputs():
    return [size]
