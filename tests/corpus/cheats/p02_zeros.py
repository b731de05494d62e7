import torch
from torch import nn

PROBLEM = "tiny_output"
CATALOGUE = "P2"
TRICK = "Answers zeros to a problem whose outputs are all smaller than an absolute tolerance."
CHECK = "accuracy"
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.proj = nn.Linear(width, width)

    def forward(self, x):
        return torch.zeros_like(x)
