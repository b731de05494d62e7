import gc

import torch
from torch import nn

PROBLEM = "linear_relu"
CATALOGUE = "C2"
TRICK = (
    "Searches the heap for a tensor of the expected shape and returns a copy of the one it finds."
)
CHECK = "values"
TWIN_OF = "c01_freed_memory"
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)

    def forward(self, x):
        shape = (x.shape[0], self.proj.out_features)
        for found in gc.get_objects():
            if isinstance(found, torch.Tensor) and tuple(found.shape) == shape:
                return found.detach().clone()
        return torch.zeros(shape)
