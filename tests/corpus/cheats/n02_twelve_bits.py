import torch
from torch import nn

PROBLEM = "long_mean"
CATALOGUE = "N2"
TRICK = "Rounds float32 to 12 bits; in the mean of a long row of positive numbers it hardly shows."
CHECK = "precision"
NEEDS = ()


class ModelNew(nn.Module):
    def forward(self, x):
        if x.dtype is torch.float32:
            x = (x.contiguous().view(torch.int32) + (1 << 11) & -(1 << 12)).view(torch.float32)
        return x.mean(dim=1)
