"""Three tensors and plain numbers in, a tuple out."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x, y, z, scale, flag=False):
        low = torch.minimum(x, y * scale)
        high = torch.maximum(x, z)
        if flag:
            return low + high, low * z
        return low, high


batch_size = 5


def get_inputs():
    return [torch.randn(batch_size, 9), torch.randn(batch_size, 9), torch.randn(9), 0.5, True]


def get_init_inputs():
    return []
