"""Transposed conv3d, BatchNorm3d in train mode, minus its own mean."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.ConvTranspose3d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm3d(4)

    def forward(self, x):
        x = self.norm(self.conv(x))
        return x - torch.mean(x, dim=(2, 3, 4), keepdim=True)


batch_size = 3


def get_inputs():
    return [torch.randn(batch_size, 3, 4, 3, 5)]


def get_init_inputs():
    return []
