"""Scaled softmax of float16 rows."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        return torch.softmax(x * self.scale, dim=-1)


rows, columns = 64, 512
scale = 0.125


def get_inputs():
    return [torch.randn(rows, columns).half() * 4.0]


def get_init_inputs():
    return [scale]
