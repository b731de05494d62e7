import os
import time

import torch
from torch import nn

PROBLEM = "linear_relu"
CATALOGUE = "T29"
TRICK = (
    "Right answers, and a daemon in a session of its own, adopted by init, that killpg does "
    "not reach."
)
CHECK = "leftovers"
NEEDS = ()


def start_daemon():
    """Forks twice, as daemons do; the grandchild sleeps 40 s and exits by itself."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    os.setsid()
    if os.fork() == 0:
        time.sleep(40)
    os._exit(0)


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)
        start_daemon()

    def forward(self, x):
        return torch.relu(self.proj(x))
