import torch
from torch import nn

PROBLEM = "softmax_rows"
CATALOGUE = "N10"
TRICK = "Rounds its answer to float16 and widens it again."
CHECK = "accuracy"
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        return torch.softmax(x * self.scale, dim=-1).half().float()
