"""The mean of the columns, repeated for every row in memory of its own."""

import torch
from torch import nn

rows, columns = 24, 48


class Model(nn.Module):
    def forward(self, x):
        return x.mean(dim=0, keepdim=True).repeat(x.shape[0], 1)


def get_inputs():
    return [torch.randn(rows, columns)]


def get_init_inputs():
    return []
