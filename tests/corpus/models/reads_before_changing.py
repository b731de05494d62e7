"""The argument is read by a product before it is overwritten."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(7, 7)

    def forward(self, x):
        y = x * 2.0
        z = self.linear(x)
        x.copy_(y)
        return z + 1.0


batch_size = 3


def get_inputs():
    return [torch.randn(batch_size, 7)]


def get_init_inputs():
    return []
