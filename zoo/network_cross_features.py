"""Deep and cross: products of features with themselves, beside a perceptron."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.crosses = nn.ModuleList(nn.Linear(width, 1) for _ in range(depth))
        self.deep = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))

    def forward(self, x):
        crossed = x
        for cross in self.crosses:
            crossed = x * cross(crossed) + crossed
        return torch.sigmoid((crossed + self.deep(x)).mean(dim=1))


rows, width = 512, 256
depth = 3


def get_inputs():
    return [torch.rand(rows, width)]


def get_init_inputs():
    return [width, depth]
