"""Linear, GELU, softmax."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, width, out_width):
        super().__init__()
        self.linear = nn.Linear(width, out_width)

    def forward(self, x):
        return torch.softmax(F.gelu(self.linear(x)), dim=1)


rows, width, out_width = 512, 256, 384


def get_inputs():
    return [torch.rand(rows, width)]


def get_init_inputs():
    return [width, out_width]
