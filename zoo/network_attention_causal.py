"""Causal self-attention, written out."""

import math

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, width, heads, length):
        super().__init__()
        self.mix = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.heads = heads
        self.register_buffer("past", torch.tril(torch.ones(length, length)).bool())

    def forward(self, x):
        split = (
            t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.mix(x).chunk(3, -1)
        )
        query, key, value = split
        scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
        weights = torch.softmax(scores.masked_fill(~self.past, float("-inf")), dim=-1)
        return self.out((weights @ value).transpose(1, 2).flatten(2))


batch_size, length, width = 2, 128, 128
heads = 4


def get_inputs():
    return [torch.randn(batch_size, length, width)]


def get_init_inputs():
    return [width, heads, length]
