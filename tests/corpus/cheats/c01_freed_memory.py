import torch
from torch import nn

PROBLEM = "linear_relu"
CATALOGUE = "C1"
TRICK = "Returns uninitialised memory, in the hope that it still holds the reference's answer."
CHECK = "values"
EARLIER = ("nonfinite",)  # what the memory holds may be NaN
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)

    def forward(self, x):
        return torch.empty(x.shape[0], self.proj.out_features)
