"""A transposed convolution of a sequence with stride, padding and dilation."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, channels, out_channels):
        super().__init__()
        self.conv = nn.ConvTranspose1d(
            channels, out_channels, 5, stride=2, padding=3, dilation=2, output_padding=1
        )

    def forward(self, x):
        return F.elu(self.conv(x))


batch_size, channels, out_channels, length = 8, 32, 24, 256


def get_inputs():
    return [torch.rand(batch_size, channels, length)]


def get_init_inputs():
    return [channels, out_channels]
