"""Causal self-attention of sequences that end early: keys beyond the end are hidden, too."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, length, heads, cap):
        super().__init__()
        self.cap = cap
        self.slopes = nn.Parameter(2.0 ** -torch.arange(1.0, heads + 1)[:, None, None])
        self.register_buffer("future", torch.full((length, length), float("-inf")).triu(1))
        self.register_buffer("distance", torch.arange(length) - torch.arange(length)[:, None])

    def forward(self, query, key, value, lengths):
        scores = torch.matmul(query, key.transpose(2, 3)) * query.shape[-1] ** -0.5
        scores = self.cap * torch.tanh(scores / self.cap) + self.slopes * self.distance
        beyond = torch.arange(key.shape[2], device=key.device) >= lengths[:, None]
        scores = (scores + self.future).masked_fill(beyond[:, None, None, :], -1e9)
        return torch.matmul(torch.softmax(scores, dim=-1), value)


batch_size, heads, length, width = 5, 6, 257, 40
cap = 20.0


def get_inputs():
    shape = (batch_size, heads, length, width)
    return [*(torch.randn(shape) for _ in range(3)), torch.randint(1, length + 1, (batch_size,))]


def get_init_inputs():
    return [length, heads, cap]
