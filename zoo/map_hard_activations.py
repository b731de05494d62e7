"""Piecewise linear activations in a row: hardswish, hardsigmoid, ReLU6, leaky ReLU, hardshrink."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def forward(self, x):
        y = F.hardswish(x) + F.hardsigmoid(x) * F.relu6(x)
        return F.leaky_relu(y - 1.0, 0.05) + F.hardshrink(x, 0.3)


rows, columns = 64, 512


def get_inputs():
    return [torch.randn(rows, columns) * 3.0]


def get_init_inputs():
    return []
