"""Linear, LayerNorm over the last dimension, GELU by tanh, residual."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(24, 24)
        self.norm = nn.LayerNorm(24)
        self.act = nn.GELU(approximate="tanh")

    def forward(self, x):
        return x + self.act(self.norm(self.linear(x)))


batch_size = 3


def get_inputs():
    return [torch.randn(batch_size, 5, 24)]


def get_init_inputs():
    return []
