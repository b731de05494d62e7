"""One perceptron across positions, one across channels."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, length, width):
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.tokens = nn.Sequential(
            nn.Linear(length, 2 * length), nn.GELU(), nn.Linear(2 * length, length)
        )
        self.norm2 = nn.LayerNorm(width)
        self.channels = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x):
        x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norm2(x))


batch_size, length, width = 4, 64, 128


def get_inputs():
    return [torch.randn(batch_size, length, width)]


def get_init_inputs():
    return [length, width]
