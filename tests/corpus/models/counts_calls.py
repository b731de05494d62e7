"""A buffer that counts calls and one that averages."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("average", torch.zeros(5))

    def forward(self, x):
        self.calls += 1
        self.average.mul_(0.9).add_(x.mean(0), alpha=0.1)
        return x - self.average


batch_size = 4


def get_inputs():
    return [torch.randn(batch_size, 5)]


def get_init_inputs():
    return []
