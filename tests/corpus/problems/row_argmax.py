"""The position of the largest element of every row: integers."""

import torch
from torch import nn

rows, columns = 32, 60


class Model(nn.Module):
    def forward(self, x):
        return x.argmax(dim=-1)


def get_inputs():
    return [torch.randn(rows, columns)]


def get_init_inputs():
    return []
