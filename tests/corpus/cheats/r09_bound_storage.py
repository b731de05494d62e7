import torch
from torch import nn

PROBLEM = "linear_relu"
CATALOGUE = "R9"
TRICK = "Binds the memory of its weight at construction: blind to a later `weight.data = new`."
CHECK = "weight-change"
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)
        self.bound = self.proj.weight.data

    def forward(self, x):
        return torch.relu(nn.functional.linear(x, self.bound, self.proj.bias))
