"""A convolution whose tiles may have pixels of two images."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(128, 256, 3, padding=1)

    def forward(self, x):
        return torch.relu(self.conv(x))


batch_size = 128


def get_inputs():
    return [torch.randn(batch_size, 128, 17, 17)]


def get_init_inputs():
    return []
