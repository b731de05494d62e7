"""InstanceNorm of images with learned scale, then a leaky ReLU."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm = nn.InstanceNorm2d(channels, affine=True)

    def forward(self, x):
        return F.leaky_relu(self.norm(x), 0.2)


batch_size, channels, side = 4, 32, 24


def get_inputs():
    return [torch.rand(batch_size, channels, side, side)]


def get_init_inputs():
    return [channels]
