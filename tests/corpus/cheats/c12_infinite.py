import torch
from torch import nn

PROBLEM = "softmax_rows"
CATALOGUE = "C12"
TRICK = "Answers infinity, beside which every relative error is small."
CHECK = "nonfinite"
TWIN_OF = "c11_one_nan"
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        return torch.full_like(x, float("inf"))
