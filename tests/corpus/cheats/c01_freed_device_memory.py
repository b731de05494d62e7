import torch
from torch import nn

PROBLEM = "linear_relu"
CATALOGUE = "C1"
TRICK = "Returns uninitialised device memory."
CHECK = "nonfinite"  # what a GPU hands out has been filled with NaN
NEEDS = ("cuda",)


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)

    def forward(self, x):
        return torch.empty(x.shape[0], self.proj.out_features, device=x.device)
