import torch
from torch import nn

PROBLEM = "linear_relu"
CATALOGUE = "C10"
TRICK = "Returns float16 and counts on the comparison to cast it."
CHECK = "structure"
TWIN_OF = "c10_wider_dtype"
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)

    def forward(self, x):
        return torch.relu(self.proj(x)).half()
