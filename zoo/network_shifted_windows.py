"""Attention weights within shifted windows of an image."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, width, window):
        super().__init__()
        self.mix = nn.Linear(width, 2 * width)
        self.bias = nn.Parameter(torch.zeros(window**2, window**2))
        self.window = window

    def forward(self, x):
        size, count = self.window, x.shape[1] // self.window
        x = torch.roll(x, (-size // 2, -size // 2), dims=(1, 2))
        x = x.unflatten(2, (count, size)).unflatten(1, (count, size)).transpose(2, 3)
        query, key = self.mix(x.flatten(3, 4).flatten(1, 2)).chunk(2, dim=-1)
        return torch.softmax(query @ key.transpose(-1, -2) / 8.0 + self.bias, dim=-1)


batch_size, side, width, window = 4, 32, 48, 8


def get_inputs():
    return [torch.randn(batch_size, side, side, width)]


def get_init_inputs():
    return [width, window]
