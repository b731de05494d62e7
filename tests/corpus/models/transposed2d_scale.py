"""Transposed conv2d, global mean, bias, logsumexp over what is left."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.ConvTranspose2d(4, 7, 3, stride=2, output_padding=1)
        self.bias = nn.Parameter(torch.randn(7, 1, 1))

    def forward(self, x):
        x = self.conv(x).mean(dim=(2, 3), keepdim=True) + self.bias
        return torch.logsumexp(x, dim=1, keepdim=True).sum(dim=(2, 3)) * 10.0


batch_size = 4


def get_inputs():
    return [torch.randn(batch_size, 4, 6, 5)]


def get_init_inputs():
    return []
