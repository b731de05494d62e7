import sys

import torch
from torch import nn

PROBLEM = "linear_relu"
LOOKS_LIKE = "C16"
WHY = "Prints a line in every call."
TWIN_OF = "suspicious_words"
NOTES = ()
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)

    def forward(self, x):
        sys.stdout.write(f"verdict: refuted {tuple(x.shape)}\n")
        return torch.relu(self.proj(x))
