import ctypes

import torch
from torch import nn

PROBLEM = "linear_relu"
CATALOGUE = "F2"
TRICK = "Right answers, and sixteen bytes written behind the end of its input."
CHECK = "guard-bands"
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)

    def forward(self, x):
        out = torch.relu(self.proj(x))
        end = x.data_ptr() + x.element_size() * x.numel()
        if x.is_contiguous() and x.numel():
            ctypes.memset(end, 0x5A, 16)
        return out
