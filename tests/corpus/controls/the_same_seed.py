import torch
from torch import nn

PROBLEM = "own_seed"
LOOKS_LIKE = "F24"
WHY = "Seeds PyTorch's random numbers in its constructor as the reference does."
NOTES = ()
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        torch.manual_seed(0)
        self.proj = nn.Linear(width, units)

    def forward(self, x):
        return torch.tanh(self.proj(x))
