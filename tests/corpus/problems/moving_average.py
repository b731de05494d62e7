"""Subtracts a running average that train mode updates and eval mode only reads."""

import torch
from torch import nn

rows, width = 24, 40


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.register_buffer("average", torch.zeros(width))

    def forward(self, x):
        if self.training:
            self.average.mul_(0.9).add_(x.detach().mean(dim=0), alpha=0.1)
        return x - self.average


def get_inputs():
    return [torch.randn(rows, width)]


def get_init_inputs():
    return [width]
