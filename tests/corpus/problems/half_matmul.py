"""A product of float16 matrices: float16 at the ends, wide sums inside."""

import torch
from torch import nn

rows, inner, columns = 24, 1024, 32


class Model(nn.Module):
    def forward(self, x, y):
        return x @ y


def get_inputs():
    return [
        torch.randn(rows, inner).to(torch.float16),
        torch.randn(inner, columns).to(torch.float16),
    ]


def get_init_inputs():
    return []
