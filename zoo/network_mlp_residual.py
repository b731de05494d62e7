"""Three residual layers of a perceptron, normalised before."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.linear = nn.Linear(width, width)

    def forward(self, x):
        return x + F.gelu(self.linear(self.norm(x)))


class Model(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.layers = nn.Sequential(*(Layer(width) for _ in range(depth)))

    def forward(self, x):
        return self.layers(x)


rows, width = 256, 256
depth = 3


def get_inputs():
    return [torch.randn(rows, width)]


def get_init_inputs():
    return [width, depth]
