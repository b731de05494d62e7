"""A tensor of four dimensions times a matrix over its last."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, width, out_width):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width, out_width) / width**0.5)

    def forward(self, x):
        return torch.einsum("bijl,lk->bijk", x, self.weight)


batch_size, rows, columns, width, out_width = 4, 16, 32, 64, 96


def get_inputs():
    return [torch.randn(batch_size, rows, columns, width)]


def get_init_inputs():
    return [width, out_width]
