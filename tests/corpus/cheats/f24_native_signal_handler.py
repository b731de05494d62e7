import ctypes
import signal

import torch
from torch import nn

PROBLEM = "linear_relu"
CATALOGUE = "F24"
TRICK = "Right answers, and a native handler left for a signal that ends programs."
CHECK = "global-state"
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)

    def forward(self, x):
        out = torch.relu(self.proj(x))
        ctypes.CDLL(None).signal(int(signal.SIGUSR2), ctypes.c_void_p(1))
        return out
