"""A square product with a tail: bias, ReLU."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, columns):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(columns))

    def forward(self, a, b):
        return torch.relu(a @ b + self.bias)


rows, depth, columns = 384, 384, 384


def get_inputs():
    return [torch.randn(rows, depth), torch.randn(depth, columns)]


def get_init_inputs():
    return [columns]
