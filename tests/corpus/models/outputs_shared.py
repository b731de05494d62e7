"""Outputs that are equal, twice the same, views of each other, and an input."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        y = x * 1.0
        z = torch.relu(x)
        return x, y, z, torch.relu(x), z.view(-1), z, x.t(), x.clone()


batch_size = 4


def get_inputs():
    return [torch.randn(batch_size, 6)]


def get_init_inputs():
    return []
