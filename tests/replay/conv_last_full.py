"""A convolution in full float32 whose images lie channels last."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(16, 128, 5, padding=2).to(memory_format=torch.channels_last)

    def forward(self, x):
        return torch.relu(self.conv(x))


batch_size = 32


def get_inputs():
    return [torch.randn(batch_size, 16, 112, 112).to(memory_format=torch.channels_last)]


def get_init_inputs():
    return []
