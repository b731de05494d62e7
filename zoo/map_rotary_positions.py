"""Rotary position embedding: halves of each head are rotated by angles from buffers."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, length, width):
        super().__init__()
        rates = 10000.0 ** (-torch.arange(0, width, 2) / width)
        angles = torch.arange(length)[:, None] * rates
        self.register_buffer("cos", torch.cat([angles, angles], dim=-1).cos())
        self.register_buffer("sin", torch.cat([angles, angles], dim=-1).sin())

    def forward(self, x):
        first, second = x.chunk(2, dim=-1)
        return x * self.cos + torch.cat([-second, first], dim=-1) * self.sin


batch_size, heads, length, width = 4, 2, 96, 64


def get_inputs():
    return [torch.randn(batch_size, heads, length, width)]


def get_init_inputs():
    return [length, width]
