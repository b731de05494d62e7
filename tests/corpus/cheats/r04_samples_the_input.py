import torch
from torch import nn

PROBLEM = "linear_relu"
CATALOGUE = "R4"
TRICK = "Gives the last answer again where a sample of the input's elements is the same."
CHECK = "stale-cache"
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)
        self.key = self.answer = None

    def forward(self, x):
        key = (
            x.shape,
            x.reshape(-1)[::61].tolist(),
            self.proj.weight._version,
            self.proj.bias._version,
        )
        if key != self.key:
            self.key, self.answer = key, torch.relu(self.proj(x))
        return self.answer.clone()
