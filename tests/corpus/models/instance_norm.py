"""Instance norm with and without parameters and running statistics."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.plain = nn.InstanceNorm2d(3)
        self.affine = nn.InstanceNorm2d(3, affine=True)
        self.running = nn.InstanceNorm2d(3, affine=True, track_running_stats=True)

    def forward(self, x):
        x = self.running(x)
        return self.affine(self.plain(x) * 3.0) / 2.0


batch_size = 4


def get_inputs():
    return [torch.randn(batch_size, 3, 5, 7)]


def get_init_inputs():
    return []
