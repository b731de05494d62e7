import torch
from torch import nn

PROBLEM = "linear_relu"
CATALOGUE = "R9"
TRICK = (
    "Binds its weight at construction: blind to a parameter "
    "put in its place, as load_state_dict(assign=True) does."
)
CHECK = "weight-change"
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)
        self.bound = [self.proj.weight]

    def forward(self, x):
        return torch.relu(nn.functional.linear(x, self.bound[0], self.proj.bias))
