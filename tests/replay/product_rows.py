"""A product of float32 and two norms of its rows."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(1024, 1024)
        self.norm = nn.GroupNorm(16, 1024)

    def forward(self, x):
        return self.norm(torch.nn.functional.silu(self.linear(x)))


batch_size = 1024


def get_inputs():
    return [torch.randn(batch_size, 1024)]


def get_init_inputs():
    return []
