import torch
from torch import nn

PROBLEM = "zero_inputs"
CATALOGUE = "P3"
TRICK = "Skips the matmul, since get_inputs draws zeros only."
CHECK = "hazard-values"
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.proj = nn.Linear(width, width)

    def forward(self, x):
        return torch.sigmoid(x + self.proj.bias)
