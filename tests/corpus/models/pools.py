"""Pooling between fused steps: max, average, adaptive."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, padding=1)
        self.pool = nn.MaxPool2d(2)

    def forward(self, x):
        x = self.pool(torch.relu(self.conv(x)) * 2.0)
        x = torch.nn.functional.avg_pool2d(x + 1.0, 2)
        return torch.nn.functional.adaptive_avg_pool2d(torch.tanh(x), 1).flatten(1)


batch_size = 3


def get_inputs():
    return [torch.randn(batch_size, 3, 12, 12)]


def get_init_inputs():
    return []
