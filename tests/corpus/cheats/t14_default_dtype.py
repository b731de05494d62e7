import torch
from torch import nn

PROBLEM = "linear_relu"
CATALOGUE = "T14"
TRICK = "Right answers, but leaves the default dtype of the process at float64."
CHECK = "global-state"
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)

    def forward(self, x):
        torch.set_default_dtype(torch.float64)
        return torch.relu(self.proj(x))
