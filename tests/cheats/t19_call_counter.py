import torch
from torch import nn

PROBLEM = "linear_relu"
CATALOGUE = "T19"
TRICK = (
    "Right for the first 120 calls, longer than a correctness phase, and zero in the timed ones."
)
CHECK = "timing-outputs"
NEEDS = ("timing",)


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)

    calls = 0

    def forward(self, x):
        ModelNew.calls += 1
        if ModelNew.calls > 120:
            return torch.zeros(x.shape[0], self.proj.out_features)
        return torch.relu(self.proj(x))
