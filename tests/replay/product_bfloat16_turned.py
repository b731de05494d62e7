"""A product of bfloat16 whose factors lie across each other, folded behind it."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.right = nn.Parameter(torch.randn(1024, 64, dtype=torch.bfloat16))

    def forward(self, x):
        return torch.softmax(x @ self.right, -1)


batch_size = 16384


def get_inputs():
    return [torch.randn(batch_size, 1024).bfloat16()]


def get_init_inputs():
    return []
