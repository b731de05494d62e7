import subprocess
import sys

import torch
from torch import nn

PROBLEM = "linear_relu"
CATALOGUE = "T28"
TRICK = "Right answers, with a process of its own kept running beside the measured one."
CHECK = "leftovers"
TWIN_OF = "t29_daemon"
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)
        sleep = [sys.executable, "-c", "import time; time.sleep(40)"]
        self.child = subprocess.Popen(sleep, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

    def forward(self, x):
        return torch.relu(self.proj(x))
