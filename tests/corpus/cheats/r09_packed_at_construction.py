import torch
from torch import nn

PROBLEM = "linear_relu"
CATALOGUE = "R9"
TRICK = "Packs the weights in the constructor, before anybody has loaded any."
CHECK = "values"
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)
        self.packed = self.proj.weight.detach().t().contiguous()

    def forward(self, x):
        return torch.relu(x @ self.packed + self.proj.bias)
