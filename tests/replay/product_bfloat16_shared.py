"""A product of bfloat16 whose last tiles are shared along their depth where tiles have clusters."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8192, 8192).bfloat16()

    def forward(self, x):
        return torch.relu(self.linear(x))


batch_size = 1280


def get_inputs():
    return [torch.randn(batch_size, 8192).bfloat16()]


def get_init_inputs():
    return []
