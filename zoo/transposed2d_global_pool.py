"""A transposed convolution, scale, two global means, a bias, logsumexp, sum."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, channels, out_channels, scale):
        super().__init__()
        self.conv = nn.ConvTranspose2d(channels, out_channels, 3, stride=2)
        self.bias = nn.Parameter(torch.randn(out_channels, 1, 1))
        self.scale = scale

    def forward(self, x):
        x = torch.mean(self.conv(x) * self.scale, dim=(2, 3), keepdim=True) + self.bias
        return torch.logsumexp(x, dim=1, keepdim=True).sum(dim=(2, 3)) * 10.0


batch_size, channels, out_channels, side = 4, 16, 32, 24
scale = 0.5


def get_inputs():
    return [torch.rand(batch_size, channels, side, side)]


def get_init_inputs():
    return [channels, out_channels, scale]
