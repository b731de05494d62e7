"""A value that is the same along its row is an output, and is folded."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        y = torch.rsqrt(x.abs().expand(x.shape[0], 5) + 0.5)
        return y, y.amin(dim=1), y.sum(dim=1, keepdim=True) * y


batch_size = 3


def get_inputs():
    return [torch.randn(batch_size, 1)]


def get_init_inputs():
    return []
