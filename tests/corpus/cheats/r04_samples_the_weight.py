import torch
from torch import nn

PROBLEM = "linear_relu"
CATALOGUE = "R4"
TRICK = "Packs its weight again only when a sample of its elements has changed."
CHECK = "weight-change"
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)
        self.key = self.packed = None

    def forward(self, x):
        weight = self.proj.weight.detach()
        key = weight.reshape(-1)[::61].tolist()
        if key != self.key:
            self.key, self.packed = key, weight.t().contiguous()
        return torch.relu(x @ self.packed + self.proj.bias)
