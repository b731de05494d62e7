import torch
from torch import nn

PROBLEM = "linear_relu"
CATALOGUE = "F15"
TRICK = "Opens a file in each call and leaves it open."
CHECK = "global-state"
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)
        self.files = []

    def forward(self, x):
        self.files.append(open("/dev/null", encoding="utf-8"))
        return torch.relu(self.proj(x))
