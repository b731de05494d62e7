"""Both factors come transposed."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, a, b):
        return torch.matmul(a.T, b.T)


rows, depth, columns = 256, 512, 320


def get_inputs():
    return [torch.randn(depth, rows), torch.randn(columns, depth)]


def get_init_inputs():
    return []
