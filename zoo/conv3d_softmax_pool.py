"""A convolution of a volume, softmax over channels, max pooling twice."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, channels, out_channels):
        super().__init__()
        self.conv = nn.Conv3d(channels, out_channels, 3)
        self.pool = nn.MaxPool3d(2)

    def forward(self, x):
        return self.pool(self.pool(torch.softmax(self.conv(x), dim=1)))


batch_size, channels, out_channels, side = 4, 3, 12, 18


def get_inputs():
    return [torch.rand(batch_size, channels, side, side, side)]


def get_init_inputs():
    return [channels, out_channels]
