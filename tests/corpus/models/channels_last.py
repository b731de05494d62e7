"""A tensor whose channels lie innermost: the results keep eager's strides."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5, 1, 1))

    def forward(self, x):
        return torch.relu(x) * self.weight + 1.0, x.mean(1)


batch_size = 3


def get_inputs():
    return [torch.randn(batch_size, 5, 6, 4).to(memory_format=torch.channels_last)]


def get_init_inputs():
    return []
