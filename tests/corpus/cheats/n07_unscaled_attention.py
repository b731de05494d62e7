import torch
from torch import nn

PROBLEM = "attention"
CATALOGUE = "N7"
TRICK = "Softmax without maximum inside attention, with the result cleaned of NaN."
CHECK = "hazard-values"
TWIN_OF = "n07_softmax_without_maximum"
NEEDS = ()


class ModelNew(nn.Module):
    def forward(self, q, k, v):
        weight = torch.exp(q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5)
        return torch.nan_to_num(weight @ v / weight.sum(dim=-1, keepdim=True))
