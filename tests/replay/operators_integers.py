"""Shifts of integers, and bits of floats that are read as integers."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x, k):
        bits = x.view(torch.int32)
        signs = (bits >> 31) & 1
        return [k << 3, k >> 2, signs, (bits & 255) + k, -k]


batch_size = 16


def get_inputs():
    return [torch.randn(batch_size, 48), torch.randint(0, 100, (batch_size, 48), dtype=torch.int32)]


def get_init_inputs():
    return []
