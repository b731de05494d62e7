import torch
from torch import nn

PROBLEM = "row_mean"
CATALOGUE = "F21"
TRICK = "Starts at the beginning of the storage, not at the offset of the tensor."
CHECK = "hazard-strides"
NEEDS = ()


class ModelNew(nn.Module):
    def forward(self, x):
        return torch.as_strided(x, x.shape, x.stride(), 0).mean(dim=1)
