"""Four branches over the same image, joined along the channels."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, channels, branch):
        super().__init__()
        self.one = nn.Conv2d(channels, branch, 1)
        self.three = nn.Sequential(
            nn.Conv2d(channels, branch, 1), nn.Conv2d(branch, branch, 3, padding=1)
        )
        self.five = nn.Sequential(
            nn.Conv2d(channels, branch, 1), nn.Conv2d(branch, branch, 5, padding=2)
        )
        self.pool = nn.Sequential(
            nn.MaxPool2d(3, stride=1, padding=1), nn.Conv2d(channels, branch, 1)
        )

    def forward(self, x):
        branches = (self.one, self.three, self.five, self.pool)
        return torch.cat([torch.relu(branch(x)) for branch in branches], dim=1)


batch_size, channels, branch, side = 4, 24, 12, 28


def get_inputs():
    return [torch.rand(batch_size, channels, side, side)]


def get_init_inputs():
    return [channels, branch]
