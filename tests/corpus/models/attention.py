"""Attention by hand: two products, a scale, a mask, softmax."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, width, heads, length):
        super().__init__()
        self.heads = heads
        self.project = nn.Linear(width, 3 * width)
        self.register_buffer("mask", torch.tril(torch.ones(length, length)))

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.project(x).split(c, dim=2)
        q, k, v = (z.view(b, t, self.heads, c // self.heads).transpose(1, 2) for z in (q, k, v))
        weights = (q @ k.transpose(-2, -1)) * (1.0 / (c // self.heads) ** 0.5)
        weights = weights.masked_fill(self.mask[:t, :t] == 0, float("-inf"))
        y = torch.softmax(weights, dim=-1) @ v
        return y.transpose(1, 2).reshape(b, t, c)


batch_size, length, width = 4, 7, 12


def get_inputs():
    return [torch.randn(batch_size, length, width)]


def get_init_inputs():
    return [width, 3, length]
