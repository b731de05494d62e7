"""A convolution of 16 bits whose images alone lie channels last."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(24, 64, 3, padding=1).half()

    def forward(self, x):
        return torch.relu(self.conv(x))


batch_size = 16


def get_inputs():
    return [torch.randn(batch_size, 24, 56, 56).half().to(memory_format=torch.channels_last)]


def get_init_inputs():
    return []
