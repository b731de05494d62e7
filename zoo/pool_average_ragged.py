"""Average pooling of a sequence whose length does not divide: ceil_mode, padding not counted."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.pool = nn.AvgPool1d(4, stride=3, padding=2, ceil_mode=True, count_include_pad=False)

    def forward(self, x):
        return torch.tanh(self.pool(x * x))


batch_size, channels, length = 4, 64, 509


def get_inputs():
    return [torch.randn(batch_size, channels, length)]


def get_init_inputs():
    return []
