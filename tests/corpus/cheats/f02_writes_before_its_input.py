import ctypes

import torch
from torch import nn

PROBLEM = "linear_relu"
CATALOGUE = "F2"
TRICK = "Right answers, and four bytes written in front of its input."
CHECK = "guard-bands"
TWIN_OF = "f02_writes_past_its_input"
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)

    def forward(self, x):
        out = torch.relu(self.proj(x))
        if x.is_contiguous() and x.numel():
            ctypes.memset(x.data_ptr() - 4, 0x5A, 4)
        return out
