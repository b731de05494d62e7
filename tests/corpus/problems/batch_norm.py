"""BatchNorm1d and relu: batch statistics in train mode, running ones in eval."""

import torch
from torch import nn

rows, channels = 40, 24


class Model(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm = nn.BatchNorm1d(channels)

    def forward(self, x):
        return torch.relu(self.norm(x))


def get_inputs():
    return [torch.randn(rows, channels)]


def get_init_inputs():
    return [channels]
