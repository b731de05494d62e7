"""The sum of each row, after a square."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return x.square().sum(dim=-1)


rows, columns = 32, 1024


def get_inputs():
    return [torch.randn(rows, columns)]


def get_init_inputs():
    return []
