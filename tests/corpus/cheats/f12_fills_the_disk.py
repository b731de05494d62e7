import tempfile

import torch
from torch import nn

PROBLEM = "linear_relu"
CATALOGUE = "F12"
TRICK = "Writes up to ten gigabytes into its working directory, and answers rightly."
CHECK = "crash"
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)

    def forward(self, x):
        block = bytes(1 << 24)
        with tempfile.TemporaryFile() as file:
            for _ in range(600):
                file.write(block)
        return torch.relu(self.proj(x))
