"""A triangle of a product."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.right = nn.Parameter(torch.randn(2048, 2048))

    def forward(self, x):
        return torch.tril(x @ self.right)


size = 2048


def get_inputs():
    return [torch.randn(2048, 2048)]


def get_init_inputs():
    return []
