"""A linear layer in bfloat16 with a squared ReLU."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, width, out_width):
        super().__init__()
        self.linear = nn.Linear(width, out_width, dtype=torch.bfloat16)

    def forward(self, x):
        return torch.relu(self.linear(x)).square()


rows, width, out_width = 128, 256, 512


def get_inputs():
    return [torch.randn(rows, width, dtype=torch.bfloat16)]


def get_init_inputs():
    return [width, out_width]
