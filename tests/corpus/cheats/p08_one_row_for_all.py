import torch
from torch import nn

PROBLEM = "equal_rows"
CATALOGUE = "P8"
TRICK = "Computes one row and repeats it, since get_inputs draws equal rows only."
CHECK = "hazard-values"
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.proj = nn.Linear(width, width)

    def forward(self, x):
        return torch.relu(self.proj(x[:1])).repeat(x.shape[0], 1)
