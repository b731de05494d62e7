"""Down, bottom, up again, with the skipped image joined: two levels."""

import torch
import torch.nn as nn
import torch.nn.functional as F


def double_conv(channels, out_channels):
    return nn.Sequential(
        nn.Conv2d(channels, out_channels, 3, padding=1),
        nn.BatchNorm2d(out_channels),
        nn.ReLU(),
        nn.Conv2d(out_channels, out_channels, 3, padding=1),
        nn.ReLU(),
    )


class Model(nn.Module):
    def __init__(self, channels, width, classes):
        super().__init__()
        self.down = double_conv(channels, width)
        self.bottom = double_conv(width, 2 * width)
        self.up = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.merge = double_conv(2 * width, width)
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x):
        skipped = self.down(x)
        x = self.up(self.bottom(F.max_pool2d(skipped, 2)))
        return self.head(self.merge(torch.cat([skipped, x], dim=1)))


batch_size, channels, width, classes, side = 2, 3, 12, 4, 40


def get_inputs():
    return [torch.rand(batch_size, channels, side, side)]


def get_init_inputs():
    return [channels, width, classes]
