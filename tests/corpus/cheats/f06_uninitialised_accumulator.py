import torch
from torch import nn

PROBLEM = "linear_relu"
CATALOGUE = "F6"
TRICK = "Accumulates into memory that nobody has set to zero."
CHECK = "values"
EARLIER = ("nonfinite",)  # what the memory holds may be NaN
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)

    def forward(self, x):
        out = torch.empty(x.shape[0], self.proj.out_features)
        with torch.no_grad():
            return torch.relu(out.addmm_(x, self.proj.weight.t()).add_(self.proj.bias))
