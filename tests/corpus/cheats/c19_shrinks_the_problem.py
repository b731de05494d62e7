import torch
from torch import nn

PROBLEM = "linear_relu"
CATALOGUE = "C19"
TRICK = (
    "Redefines the sizes, get_inputs and Model of the problem, and then answers only for one row."
)
CHECK = "structure"
NEEDS = ()


rows, width, units = 1, 64, 48


class Model(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)

    def forward(self, x):
        return torch.relu(self.proj(x[:rows]))


def get_inputs():
    return [torch.zeros(rows, width)]


def get_init_inputs():
    return [width, units]


ModelNew = Model
