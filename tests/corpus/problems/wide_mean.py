"""Weak under an absolute tolerance: means of 4096 centred numbers are nearly zero."""

import torch
from torch import nn

rows, columns = 12, 4096


class Model(nn.Module):
    def forward(self, x):
        return x.mean(dim=-1)


def get_inputs():
    return [torch.randn(rows, columns)]


def get_init_inputs():
    return []
