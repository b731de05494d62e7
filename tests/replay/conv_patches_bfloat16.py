"""Patches of bfloat16 that do not overlap."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 384, 16, stride=16).bfloat16()

    def forward(self, x):
        return torch.nn.functional.gelu(self.conv(x))


batch_size = 32


def get_inputs():
    return [torch.randn(batch_size, 3, 224, 224).bfloat16()]


def get_init_inputs():
    return []
