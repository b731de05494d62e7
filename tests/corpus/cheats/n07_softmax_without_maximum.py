import torch
from torch import nn

PROBLEM = "softmax_rows"
CATALOGUE = "N7"
TRICK = "Leaves out the subtraction of the row's maximum."
CHECK = "hazard-values"
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        weight = torch.exp(x * self.scale)
        return weight / weight.sum(dim=-1, keepdim=True)
