"""Two convolutions with BatchNorm in train mode and a projected shortcut."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, channels, out_channels, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out_channels, 3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(out_channels)
        self.shortcut = nn.Conv2d(channels, out_channels, 1, stride=stride, bias=False)

    def forward(self, x):
        y = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


batch_size, channels, out_channels, side = 4, 16, 32, 32
stride = 2


def get_inputs():
    return [torch.rand(batch_size, channels, side, side)]


def get_init_inputs():
    return [channels, out_channels, stride]
