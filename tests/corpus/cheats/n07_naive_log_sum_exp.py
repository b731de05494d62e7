import torch
from torch import nn

PROBLEM = "log_sum_exp"
CATALOGUE = "N7"
TRICK = "Takes log(sum(exp(x))) literally."
CHECK = "hazard-values"
TWIN_OF = "n07_softmax_without_maximum"
NEEDS = ()


class ModelNew(nn.Module):
    def forward(self, x):
        return torch.log(torch.exp(x).sum(dim=-1))
