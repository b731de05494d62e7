"""A product of 16 bits, and what follows it."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(1024, 2048).half()

    def forward(self, x):
        return torch.relu(self.linear(x))


batch_size = 2048


def get_inputs():
    return [torch.randn(batch_size, 1024).half()]


def get_init_inputs():
    return []
