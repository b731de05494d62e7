"""Transposed conv1d, tanh, a number that is inf."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.ConvTranspose1d(4, 3, 4, stride=3)
        self.limit = float("inf")

    def forward(self, x):
        return torch.clamp(torch.tanh(self.conv(x)), -self.limit, self.limit).masked_fill(
            x.mean() > 1e9, float("-inf")
        )


batch_size = 2


def get_inputs():
    return [torch.randn(batch_size, 4, 7)]


def get_init_inputs():
    return []
