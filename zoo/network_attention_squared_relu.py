"""Causal attention whose weights are squared ReLUs instead of a softmax."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.mix = nn.Linear(width, 3 * width)
        self.heads = heads

    def forward(self, x):
        query, key, value = (
            t.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for t in self.mix(x).split(x.shape[-1], -1)
        )
        scores = torch.relu(query @ key.transpose(-1, -2)).square() / x.shape[1]
        return (torch.tril(scores) @ value).transpose(1, 2).reshape(x.shape)


batch_size, length, width = 2, 128, 128
heads = 4


def get_inputs():
    return [torch.randn(batch_size, length, width)]


def get_init_inputs():
    return [width, heads]
