"""Which way forward goes depends on the data: this cannot be exported."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x):
        x = self.linear(x)
        if x.sum() > 0:  # here
            return x
        return x.tanh()


batch_size, width = 4, 8


def get_inputs():
    return [torch.rand(batch_size, width)]


def get_init_inputs():
    return [width]
