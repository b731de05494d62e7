"""forward returns an object of a class of its own beside a tensor."""

import torch
import torch.nn as nn


class Statistics:
    def __init__(self, mean):
        self.mean = mean


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x):  # here
        return self.linear(x), Statistics(x.mean())


batch_size, width = 4, 8


def get_inputs():
    return [torch.rand(batch_size, width)]


def get_init_inputs():
    return [width]
