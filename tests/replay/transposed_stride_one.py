"""A transposed convolution, stride 1."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.ConvTranspose2d(64, 64, 3, padding=1)

    def forward(self, x):
        return torch.relu(self.conv(x))


batch_size = 16


def get_inputs():
    return [torch.randn(batch_size, 64, 56, 56)]


def get_init_inputs():
    return []
