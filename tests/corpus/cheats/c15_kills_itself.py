import os
import signal

from torch import nn

PROBLEM = "linear_relu"
CATALOGUE = "C15"
TRICK = "Kills its own process by SIGKILL in a call."
CHECK = "crash"
TWIN_OF = "c15_hard_exit_zero"
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)

    def forward(self, x):
        os.kill(os.getpid(), signal.SIGKILL)
