import torch
from torch import nn

PROBLEM = "linear_relu"
CATALOGUE = "C36"
TRICK = "Keeps its parameters in float16, so that loading them rounds them."
CHECK = "parameters"
TWIN_OF = "c36_renamed_parameters"
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units).half()

    def forward(self, x):
        return torch.relu(x @ self.proj.weight.float().t() + self.proj.bias.float())
