import random

import numpy as np
import torch
from torch import nn

PROBLEM = "linear_relu"
LOOKS_LIKE = "F24"
WHY = "Chooses among equal ways at random, and draws from generators that are its own."
NOTES = ()
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)
        self.scratch = torch.rand(units)
        self.draws = torch.Generator().manual_seed(3), np.random.default_rng(3), random.Random(3)

    def forward(self, x):
        tensors, numbers, plain = self.draws
        chosen = float(torch.rand(1, generator=tensors)) + numbers.random() + plain.random()
        return torch.relu(self.proj(x)) if chosen > 1.5 else self.proj(x).relu()
