import ctypes

import torch
from torch import nn

PROBLEM = "row_mean"
CATALOGUE = "F19"
TRICK = "Reads its input as if it were contiguous."
CHECK = "hazard-strides"
NEEDS = ()


class ModelNew(nn.Module):
    def forward(self, x):
        return flat(x).mean(dim=1)


def flat(x):
    """The first x.numel() elements from the address of x, whatever the strides say."""
    size = x.numel() * x.element_size()
    if not size:
        return x
    room = bytearray(ctypes.string_at(x.data_ptr(), size))
    return torch.frombuffer(room, dtype=x.dtype).view(x.shape)
