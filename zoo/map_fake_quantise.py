"""Round to 8 bits and back, with a learned step and a zero point per column."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, columns):
        super().__init__()
        self.step = nn.Parameter(torch.rand(columns) * 0.05 + 0.01)
        self.register_buffer("zero_point", torch.randint(-8, 8, (columns,)).float())

    def forward(self, x):
        levels = torch.clamp(torch.round(x / self.step) + self.zero_point, -128.0, 127.0)
        return (levels - self.zero_point) * self.step


rows, columns = 64, 512


def get_inputs():
    return [torch.randn(rows, columns)]


def get_init_inputs():
    return [columns]
