"""RMS norm in float64."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width, dtype=torch.float64) + 0.5)

    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + 1e-8) * self.weight


rows, width = 64, 512


def get_inputs():
    return [torch.randn(rows, width, dtype=torch.float64)]


def get_init_inputs():
    return [width]
