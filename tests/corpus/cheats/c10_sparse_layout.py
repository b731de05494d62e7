import torch
from torch import nn

PROBLEM = "linear_relu"
CATALOGUE = "C10"
TRICK = "Returns a sparse tensor where eager returns a dense one."
CHECK = "structure"
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)

    def forward(self, x):
        return torch.relu(self.proj(x)).detach().to_sparse()
