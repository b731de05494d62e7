"""Dropout with p = 0 in train mode, and Dropout in eval mode."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(10, 10)
        self.never = nn.Dropout(0.0)
        self.evaluated = nn.Dropout(0.5).eval()

    def forward(self, x):
        return self.evaluated(torch.sigmoid(self.never(self.linear(x)))) * 3.0


batch_size = 5


def get_inputs():
    return [torch.randn(batch_size, 10)]


def get_init_inputs():
    return []
