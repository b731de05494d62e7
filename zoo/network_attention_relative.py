"""Attention from a sequence to a longer memory, with a learned bias for each distance."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, width, heads, length, memory):
        super().__init__()
        self.query = nn.Linear(width, width, bias=False)
        self.both = nn.Linear(width, 2 * width, bias=False)
        self.heads = heads
        self.distances = nn.Parameter(torch.randn(length + memory - 1, heads) * 0.1)
        place = torch.arange(length)[:, None] - torch.arange(memory)[None, :] + memory - 1
        self.register_buffer("place", place)

    def split(self, x):
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def forward(self, x, memory):
        query = self.split(self.query(x))
        key, value = (self.split(t) for t in self.both(memory).chunk(2, -1))
        scores = torch.einsum("bhqd,bhkd->bhqk", query, key)
        bias = self.distances[self.place].permute(2, 0, 1)
        weights = torch.softmax(scores + bias, dim=-1)
        return x + (weights @ value).transpose(1, 2).flatten(2)


batch_size, length, memory, width = 5, 200, 300, 256
heads = 4


def get_inputs():
    return [torch.randn(batch_size, length, width), torch.randn(batch_size, memory, width)]


def get_init_inputs():
    return [width, heads, length, memory]
