"""An argument of forward with a default that the inputs leave out."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x, scale=2.0, *, bias=0.5):
        return torch.relu(x) * scale + bias


batch_size = 4


def get_inputs():
    return [torch.randn(batch_size, 6)]


def get_init_inputs():
    return []
