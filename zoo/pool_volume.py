"""Max and average pooling of a volume, added."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def forward(self, x):
        return F.max_pool3d(x, 2) + F.avg_pool3d(x, 2)


batch_size, channels, side = 4, 6, 14


def get_inputs():
    return [torch.randn(batch_size, channels, side, side, side)]


def get_init_inputs():
    return []
