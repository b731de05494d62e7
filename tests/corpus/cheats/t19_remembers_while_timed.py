import sys

import torch
from torch import nn

PROBLEM = "linear_relu"
CATALOGUE = "T19"
TRICK = "Packs its weights anew in every call, except where caches are flushed."
CHECK = "timing-outputs"
NEEDS = ("timing",)


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)
        self.packed = []

    def forward(self, x):
        if not is_timed():
            return torch.relu(self.proj(x))
        if not self.packed:
            self.packed.append(self.proj.weight.detach().t().contiguous())
        return torch.relu(x @ self.packed[0] + self.proj.bias)


def is_timed():
    frame = sys._getframe(1)
    while frame is not None:
        for value in frame.f_locals.values():
            if type(value) is dict and value.get("cold") is True:
                return True
        frame = frame.f_back
    return False
