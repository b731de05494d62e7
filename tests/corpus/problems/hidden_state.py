"""Keeps a hidden state on the module, None before the first call, and a step that it counts."""

import torch
from torch import nn

rows, width = 24, 40


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.w = nn.Linear(width, width)
        self.u = nn.Linear(width, width, bias=False)
        self.register_buffer("decay", torch.full((width,), 0.5))
        self.register_buffer("level", torch.zeros(width))
        self.h = None

    def forward(self, x):
        h = torch.zeros_like(x) if self.h is None else self.h
        self.level = self.level * self.decay + x.mean(0)
        self.h = torch.tanh(self.w(x) + self.u(h) + self.level)
        return self.h * 2


def get_inputs():
    return [torch.randn(rows, width)]


def get_init_inputs():
    return [width]
