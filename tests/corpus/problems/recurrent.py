"""Many small steps: little data, and milliseconds of work, which an outside clock can see."""

import torch
from torch import nn

rows, width, steps = 8, 32, 200


class Model(nn.Module):
    def __init__(self, width, steps):
        super().__init__()
        self.cell = nn.Linear(width, width)
        self.steps = steps

    def forward(self, x):
        h = x
        for _ in range(self.steps):
            h = 0.5 * h + 0.5 * torch.tanh(self.cell(h) + x)
        return h


def get_inputs():
    return [torch.randn(rows, width)]


def get_init_inputs():
    return [width, steps]
