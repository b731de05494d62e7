import collections

import torch
from torch import nn

PROBLEM = "linear_relu"
LOOKS_LIKE = "R10"
WHY = "Keeps its last few answers, as models do whose activations somebody looks at."
NOTES = ()
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)
        self.seen = collections.deque(maxlen=5)

    def forward(self, x):
        out = torch.relu(self.proj(x))
        self.seen.append(out)
        return out
