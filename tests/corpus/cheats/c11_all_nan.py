import torch
from torch import nn

PROBLEM = "linear_relu"
CATALOGUE = "C11"
TRICK = "Answers NaN everywhere."
CHECK = "nonfinite"
TWIN_OF = "c11_one_nan"
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)

    def forward(self, x):
        return torch.full((x.shape[0], self.proj.out_features), float("nan"))
