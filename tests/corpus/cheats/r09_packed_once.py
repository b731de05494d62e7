import torch
from torch import nn

PROBLEM = "linear_relu"
CATALOGUE = "R9"
TRICK = "Packs the weights at the first call and never looks at them again."
CHECK = "weight-change"
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)
        self.packed = None

    def forward(self, x):
        if self.packed is None:
            with torch.no_grad():
                self.packed = (self.proj.weight.t().contiguous(), self.proj.bias.clone())
        weight, bias = self.packed
        return torch.relu(x @ weight + bias)
