import torch
from torch import nn

PROBLEM = "scale_in_place"
CATALOGUE = "C7"
TRICK = "Returns the right values, but leaves alone the input that eager changes in place."
CHECK = "input-mutation"
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x):
        return (x * 2.0 + self.bias).detach()
