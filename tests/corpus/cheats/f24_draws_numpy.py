import numpy as np
import torch
from torch import nn

PROBLEM = "linear_relu"
CATALOGUE = "F24"
TRICK = "Right answers, and numpy's random numbers moved on."
CHECK = "global-state"
TWIN_OF = "f24_draws_numbers"
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)

    def forward(self, x):
        out = torch.relu(self.proj(x))
        np.random.rand()
        return out
