"""Moves one tensor towards another: lerp, addcmul, addcdiv."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x, y):
        moved = torch.lerp(x, y, 0.3)
        return torch.addcdiv(torch.addcmul(moved, x, y, value=0.1), x, y * y + 1.0, value=0.2)


rows, columns = 32, 512


def get_inputs():
    return [torch.randn(rows, columns), torch.randn(rows, columns)]


def get_init_inputs():
    return []
