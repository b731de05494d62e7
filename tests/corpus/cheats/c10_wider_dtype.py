import torch
from torch import nn

PROBLEM = "linear_relu"
CATALOGUE = "C10"
TRICK = "Returns float64 where eager returns float32."
CHECK = "structure"
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)

    def forward(self, x):
        weight, bias = self.proj.weight.double(), self.proj.bias.double()
        return torch.relu(x.double() @ weight.t() + bias)
