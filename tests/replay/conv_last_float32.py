"""A convolution of float32 whose images lie channels last."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(128, 128, 3, padding=1).to(memory_format=torch.channels_last)

    def forward(self, x):
        return torch.relu(self.conv(x))


batch_size = 16


def get_inputs():
    return [torch.randn(batch_size, 128, 56, 56).to(memory_format=torch.channels_last)]


def get_init_inputs():
    return []
