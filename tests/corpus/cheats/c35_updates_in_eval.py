import torch
from torch import nn

PROBLEM = "moving_average"
CATALOGUE = "C35"
TRICK = "Goes on updating its running average in eval mode."
CHECK = "mode"
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.register_buffer("average", torch.zeros(width))

    def forward(self, x):
        self.average.mul_(0.9).add_(x.detach().mean(dim=0), alpha=0.1)
        return x - self.average
