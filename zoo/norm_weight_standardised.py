"""A convolution whose weight is standardised at every call."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, channels, out_channels):
        super().__init__()
        self.conv = nn.Conv2d(channels, out_channels, 3, padding=1)

    def forward(self, x):
        weight = self.conv.weight
        centred = weight - weight.mean(dim=(1, 2, 3), keepdim=True)
        scaled = centred / (weight.std(dim=(1, 2, 3), keepdim=True) + 1e-5)
        return torch.relu(F.conv2d(x, scaled, self.conv.bias, padding=1))


batch_size, channels, out_channels, side = 4, 16, 32, 32


def get_inputs():
    return [torch.rand(batch_size, channels, side, side)]


def get_init_inputs():
    return [channels, out_channels]
