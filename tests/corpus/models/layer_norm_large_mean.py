"""LayerNorm of values far from zero over several dimensions: nothing may cancel."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm((6, 7), eps=1e-3, bias=False)

    def forward(self, x):
        return self.norm(x + 1000.0)


batch_size = 5


def get_inputs():
    return [torch.randn(batch_size, 3, 6, 7)]


def get_init_inputs():
    return []
