"""Positive and negative parts side by side, with a third of another size."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x, y):
        return torch.cat([torch.relu(x), torch.relu(-x), torch.tanh(y)], dim=1)


rows, width, other = 128, 256, 96


def get_inputs():
    return [torch.randn(rows, width), torch.randn(rows, other)]


def get_init_inputs():
    return []
