"""Prime sizes everywhere."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 7, 3)
        self.norm = nn.GroupNorm(7, 7)

    def forward(self, x):
        x = self.norm(self.conv(x))
        return torch.amax(torch.nn.functional.silu(x), dim=(2, 3))


batch_size = 3


def get_inputs():
    return [torch.randn(batch_size, 3, 13, 31)]


def get_init_inputs():
    return []
