"""A norm of some long rows, with a weight for each element."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(196608)

    def forward(self, x):
        return self.norm(x)


batch_size = 80


def get_inputs():
    return [torch.randn(batch_size, 196608)]


def get_init_inputs():
    return []
