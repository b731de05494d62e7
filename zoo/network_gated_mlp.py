"""The feed-forward part of a language model: RMS norm, swish gate, residual."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.norm = nn.RMSNorm(width)
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x):
        y = self.norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


batch_size, length, width, hidden = 2, 128, 192, 512


def get_inputs():
    return [torch.randn(batch_size, length, width)]


def get_init_inputs():
    return [width, hidden]
