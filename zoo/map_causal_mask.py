"""Scores above the diagonal become minus a large number; the rest is scaled."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, length, scale):
        super().__init__()
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        self.register_buffer("future", future)
        self.scale = scale

    def forward(self, scores):
        return (scores * self.scale).masked_fill(self.future, -1.0e4)


batch_size, heads, length = 4, 2, 96
scale = 0.125


def get_inputs():
    return [torch.randn(batch_size, heads, length, length)]


def get_init_inputs():
    return [length, scale]
