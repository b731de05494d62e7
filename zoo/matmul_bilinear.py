"""A bilinear form of two inputs, one matrix for each output."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, left, right, outputs):
        super().__init__()
        self.form = nn.Bilinear(left, right, outputs)

    def forward(self, x, y):
        return torch.tanh(self.form(x, y))


rows, left, right, outputs = 256, 32, 48, 24


def get_inputs():
    return [torch.randn(rows, left), torch.randn(rows, right)]


def get_init_inputs():
    return [left, right, outputs]
