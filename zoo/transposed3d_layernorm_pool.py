"""A transposed convolution of a volume, plus a number, LayerNorm, average pooling, GELU."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, channels, out_channels, out_width):
        super().__init__()
        self.conv = nn.ConvTranspose3d(channels, out_channels, 3, stride=2, padding=1)
        self.weight = nn.Parameter(torch.tensor(1.0))
        self.norm = nn.LayerNorm(out_width)

    def forward(self, x):
        x = self.norm(self.conv(x) + self.weight)
        return F.gelu(F.avg_pool3d(x, 2))


batch_size, channels, out_channels, side = 4, 8, 12, 8
out_width = 2 * side - 1


def get_inputs():
    return [torch.rand(batch_size, channels, side, side, side)]


def get_init_inputs():
    return [channels, out_channels, out_width]
