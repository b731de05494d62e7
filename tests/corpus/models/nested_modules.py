"""Sequential, ModuleList and modules of modules."""

import torch
import torch.nn as nn


class Block(nn.Module):
    """Pre-norm residual block."""

    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.layers = nn.Sequential(
            nn.Linear(width, 2 * width), nn.ELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x):
        return x + self.layers(self.norm(x))


class Model(nn.Module):
    def __init__(self, width, depth=3):
        super().__init__()
        self.blocks = nn.ModuleList([Block(width) for _ in range(depth)])
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 5), nn.Softplus())

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


batch_size = 4


def get_inputs():
    return [torch.randn(batch_size, 16)]


def get_init_inputs():
    return [16]
