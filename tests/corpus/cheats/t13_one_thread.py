import torch
from torch import nn

PROBLEM = "linear_relu"
CATALOGUE = "T13"
TRICK = "Right answers, but slows a baseline in the same process down by taking its threads away."
CHECK = "global-state"
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)
        torch.set_num_threads(1 if torch.get_num_threads() != 1 else 2)

    def forward(self, x):
        return torch.relu(self.proj(x))
