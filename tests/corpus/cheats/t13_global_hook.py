import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

PROBLEM = "linear_relu"
CATALOGUE = "T13"
TRICK = "A global forward hook zeroes the output of every module, its own included."
CHECK = "values"
TWIN_OF = "t13_library_override"
NEEDS = ()


def zero(module, inputs, output):
    return output * 0


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)
        register_module_forward_hook(zero)

    def forward(self, x):
        return torch.relu(self.proj(x))
