"""A texture, repeated, with an upper triangle of itself on top."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return x.repeat(1, 3, 1, 1) + torch.cat([x, x.triu(1), x.tril(-1)], dim=1)


batch_size, channels, side = 8, 4, 24


def get_inputs():
    return [torch.randn(batch_size, channels, side, side)]


def get_init_inputs():
    return []
