import os

from torch import nn

PROBLEM = "linear_relu"
CATALOGUE = "C15"
TRICK = "The answer is an object whose destructor ends the process with status 0."
CHECK = "crash"
TWIN_OF = "c15_hard_exit_zero"
NEEDS = ()


class Answer:
    def __del__(self):
        os._exit(0)


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)

    def forward(self, x):
        return Answer()
