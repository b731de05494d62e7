"""A product, then activations and arithmetic with a per-feature parameter."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, wide, out):
        super().__init__()
        self.linear = nn.Linear(wide, out)
        self.scale = nn.Parameter(torch.randn(out))

    def forward(self, x):
        x = self.linear(x)
        x = x * torch.sigmoid(x)
        return torch.clamp(x * self.scale + 0.5, min=-1.0, max=2.0) / 3.0


batch_size, wide, out = 9, 21, 35


def get_inputs():
    return [torch.randn(batch_size, wide)]


def get_init_inputs():
    return [wide, out]
