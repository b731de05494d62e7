"""Max pooling with padding and dilation, around a ReLU."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.pool = nn.MaxPool2d(3, stride=2, padding=1, dilation=2)

    def forward(self, x):
        return self.pool(torch.relu(x)) + 1.0


batch_size, channels, side = 4, 16, 32


def get_inputs():
    return [torch.randn(batch_size, channels, side, side)]


def get_init_inputs():
    return []
