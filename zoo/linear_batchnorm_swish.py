"""Linear, BatchNorm in train mode, bias, division, swish."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, width, out_width, divisor):
        super().__init__()
        self.linear = nn.Linear(width, out_width)
        self.norm = nn.BatchNorm1d(out_width)
        self.bias = nn.Parameter(torch.randn(1))
        self.divisor = divisor

    def forward(self, x):
        return F.silu((self.norm(self.linear(x)) + self.bias) / self.divisor)


batch_size, width, out_width = 256, 256, 512
divisor = 1.5


def get_inputs():
    return [torch.rand(batch_size, width)]


def get_init_inputs():
    return [width, out_width, divisor]
