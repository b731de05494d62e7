import ctypes

from torch import nn

PROBLEM = "linear_relu"
CATALOGUE = "F10"
TRICK = "Reads address zero: the process dies of SIGSEGV."
CHECK = "crash"
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)

    def forward(self, x):
        ctypes.string_at(0)
