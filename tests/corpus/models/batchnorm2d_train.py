"""BatchNorm2d in train mode: batch statistics, running ones updated; then ReLU."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm = nn.BatchNorm2d(channels, momentum=0.3)

    def forward(self, x):
        return torch.relu(self.norm(x)) + x


batch_size, channels = 4, 5


def get_inputs():
    return [torch.randn(batch_size, channels, 7, 9) * 2 + 1]


def get_init_inputs():
    return [5]
