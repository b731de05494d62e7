"""Overlapping windows whose last ones reach over the edge, largest minus mean."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def forward(self, x):
        largest = F.max_pool2d(x, 3, stride=2, ceil_mode=True)
        return largest - F.avg_pool2d(x, 3, stride=2, ceil_mode=True)


batch_size, channels, side = 4, 8, 30


def get_inputs():
    return [torch.randn(batch_size, channels, side, side)]


def get_init_inputs():
    return []
