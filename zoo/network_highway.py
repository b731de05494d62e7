"""Highway layers: a gate decides between a layer and its input."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.gates = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, x):
        for layer, gate in zip(self.layers, self.gates, strict=True):
            share = torch.sigmoid(gate(x))
            x = share * torch.relu(layer(x)) + (1.0 - share) * x
        return x


rows, width = 256, 256
depth = 2


def get_inputs():
    return [torch.randn(rows, width)]


def get_init_inputs():
    return [width, depth]
