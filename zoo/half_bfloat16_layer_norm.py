"""LayerNorm in bfloat16 with a residual."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width, dtype=torch.bfloat16)

    def forward(self, x, residual):
        return self.norm(x + residual) + residual


rows, width = 32, 512


def get_inputs():
    return [
        torch.randn(rows, width, dtype=torch.bfloat16),
        torch.randn(rows, width, dtype=torch.bfloat16),
    ]


def get_init_inputs():
    return [width]
