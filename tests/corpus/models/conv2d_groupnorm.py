"""conv2d with stride and groups, GroupNorm, hardswish."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, groups):
        super().__init__()
        self.conv = nn.Conv2d(8, 12, (3, 5), stride=2, padding=(1, 2), groups=4)
        self.norm = nn.GroupNorm(groups, 12)
        self.act = nn.Hardswish()

    def forward(self, x):
        return self.act(self.norm(self.conv(x)))


batch_size = 3


def get_inputs():
    return [torch.randn(batch_size, 8, 11, 13)]


def get_init_inputs():
    return [3]
