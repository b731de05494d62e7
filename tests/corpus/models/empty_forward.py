"""forward returns its argument, and a view of a parameter."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 4))

    def forward(self, x):
        return x, self.weight.view(-1)


batch_size = 4


def get_inputs():
    return [torch.randn(batch_size, 6)]


def get_init_inputs():
    return []
