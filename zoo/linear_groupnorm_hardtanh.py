"""Linear, GroupNorm, hardtanh."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, width, out_width, groups):
        super().__init__()
        self.linear = nn.Linear(width, out_width)
        self.norm = nn.GroupNorm(groups, out_width)

    def forward(self, x):
        return F.hardtanh(self.norm(self.linear(x)), -2.0, 2.0)


rows, width, out_width = 512, 256, 512
groups = 8


def get_inputs():
    return [torch.rand(rows, width)]


def get_init_inputs():
    return [width, out_width, groups]
