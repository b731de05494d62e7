import os

from torch import nn

PROBLEM = "linear_relu"
CATALOGUE = "C15"
TRICK = (
    "Leaves by os._exit(0) in the middle of a call: no exception, no clean-up, a good exit status."
)
CHECK = "crash"
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)

    def forward(self, x):
        os._exit(0)
