import os
import time

import torch
from torch import nn

PROBLEM = "linear_relu"
CATALOGUE = "F12"
TRICK = "Starts eighty processes that sleep for half a minute."
CHECK = "leftovers"
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)
        for _ in range(80):
            try:
                if os.fork() == 0:
                    time.sleep(30)
                    os._exit(0)
            except OSError:
                break

    def forward(self, x):
        return torch.relu(self.proj(x))
