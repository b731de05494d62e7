"""Channels weighted by what a small network says about their means."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, channels, squeezed):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)
        self.down = nn.Linear(channels, squeezed)
        self.up = nn.Linear(squeezed, channels)

    def forward(self, x):
        y = self.conv(x)
        weights = torch.sigmoid(self.up(torch.relu(self.down(y.mean(dim=(2, 3))))))
        return torch.relu(x + y * weights[:, :, None, None])


batch_size, channels, squeezed, side = 4, 32, 8, 32


def get_inputs():
    return [torch.rand(batch_size, channels, side, side)]


def get_init_inputs():
    return [channels, squeezed]
