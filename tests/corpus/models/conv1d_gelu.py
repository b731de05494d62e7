"""conv1d, GELU, a residual of its own output."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.conv = nn.Conv1d(inner, inner, 3, padding=1)

    def forward(self, x):
        y = self.conv(x)
        return y + torch.nn.functional.gelu(y) * x


batch_size, inner = 5, 6


def get_inputs():
    return [torch.randn(batch_size, inner, 17)]


def get_init_inputs():
    return [inner]
