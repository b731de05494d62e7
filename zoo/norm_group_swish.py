"""GroupNorm and swish, as in diffusion networks."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, groups, channels):
        super().__init__()
        self.norm = nn.GroupNorm(groups, channels)

    def forward(self, x):
        return F.silu(self.norm(x))


batch_size, groups, channels, side = 4, 8, 32, 24


def get_inputs():
    return [torch.randn(batch_size, channels, side, side)]


def get_init_inputs():
    return [groups, channels]
