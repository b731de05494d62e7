"""RMS norm by hand and by module."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width))
        self.norm = nn.RMSNorm(width)

    def forward(self, x):
        y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight
        return self.norm(y)


batch_size, width = 3, 33


def get_inputs():
    return [torch.randn(batch_size, 4, width)]


def get_init_inputs():
    return [33]
