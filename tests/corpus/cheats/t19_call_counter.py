import torch
from torch import nn

PROBLEM = "linear_relu"
CATALOGUE = "T19"
TRICK = "Right for the first 90 calls, longer than most correctness phases, and zero afterwards."
CHECK = "values"
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)

    calls = 0

    def forward(self, x):
        ModelNew.calls += 1
        if ModelNew.calls > 90:
            return torch.zeros(x.shape[0], self.proj.out_features)
        return torch.relu(self.proj(x))
