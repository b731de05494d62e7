import torch
from torch import nn

PROBLEM = "log_sum_exp"
CATALOGUE = "C29"
TRICK = "Leaves the last element of every row out of the sum."
CHECK = "influence"
NEEDS = ()


class ModelNew(nn.Module):
    def forward(self, x):
        if x.shape[-1] < 2:
            return torch.logsumexp(x, dim=-1)
        return torch.logsumexp(x[:, :-1], dim=-1)
