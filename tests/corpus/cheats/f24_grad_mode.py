import torch
from torch import nn

PROBLEM = "linear_relu"
CATALOGUE = "F24"
TRICK = "Right answers, and gradient recording switched off for the rest of the process."
CHECK = "global-state"
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)

    def forward(self, x):
        out = torch.relu(self.proj(x))
        torch.set_grad_enabled(False)
        return out
