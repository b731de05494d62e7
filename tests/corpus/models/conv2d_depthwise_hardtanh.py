"""Depthwise dilated convolution, ReLU6, hardtanh, per-channel bias."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(6, 6, 3, groups=6, dilation=2, bias=False)
        self.bias = nn.Parameter(torch.randn(6, 1, 1))
        self.tanh = nn.Hardtanh(-0.5, 0.7)

    def forward(self, x):
        return self.tanh(torch.nn.functional.relu6(self.conv(x)) + self.bias) * 2


batch_size = 2


def get_inputs():
    return [torch.randn(batch_size, 6, 9, 10)]


def get_init_inputs():
    return []
