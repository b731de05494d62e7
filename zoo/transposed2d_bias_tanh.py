"""A transposed convolution, minus a bias, tanh."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, channels, out_channels):
        super().__init__()
        self.conv = nn.ConvTranspose2d(
            channels, out_channels, 4, stride=2, padding=1, output_padding=1
        )
        self.bias = nn.Parameter(torch.randn(out_channels, 1, 1))

    def forward(self, x):
        return torch.tanh(self.conv(x) - self.bias)


batch_size, channels, out_channels, side = 4, 32, 16, 24


def get_inputs():
    return [torch.rand(batch_size, channels, side, side)]


def get_init_inputs():
    return [channels, out_channels]
