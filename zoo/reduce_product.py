"""The product of each row of numbers near one."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return torch.prod(1.0 + 0.01 * x, dim=-1)


rows, columns = 128, 256


def get_inputs():
    return [torch.randn(rows, columns)]


def get_init_inputs():
    return []
