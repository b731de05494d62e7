import torch
from torch import nn

PROBLEM = "saturated"
LOOKS_LIKE = "P1"
WHY = "An honest copy of a problem whose answer is always one."
TWIN_OF = "constant_for_a_weak_problem"
NOTES = ("weak-problem",)
NEEDS = ()


class ModelNew(nn.Module):
    def forward(self, x):
        return torch.tanh(torch.abs(x) + 20.0)
