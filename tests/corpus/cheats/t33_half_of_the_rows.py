import torch
from torch import nn

PROBLEM = "row_mean"
CATALOGUE = "T33"
TRICK = "Computes the first half of the rows and leaves the rest as it finds it."
CHECK = "values"
TWIN_OF = "c01_freed_memory"
NEEDS = ()


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty(x.shape[0])
        half = (x.shape[0] + 1) // 2
        out[:half] = x[:half].mean(dim=1)
        return out
