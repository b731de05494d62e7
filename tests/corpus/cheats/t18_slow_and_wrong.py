import time

import torch
from torch import nn

PROBLEM = "linear_relu"
CATALOGUE = "T18"
TRICK = "Is so slow that little time is left for cases, and answers zero for NaN."
CHECK = "hazard-values"
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)

    def forward(self, x):
        time.sleep(0.2)
        y = self.proj(x)
        return torch.where(y > 0, y, torch.zeros_like(y))
