import sys

from torch import nn

PROBLEM = "linear_relu"
CATALOGUE = "C15"
TRICK = "Leaves with exit status 0 in the middle of a call."
CHECK = "crash"
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)

    def forward(self, x):
        sys.exit(0)
