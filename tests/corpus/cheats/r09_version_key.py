import torch
from torch import nn

PROBLEM = "linear_relu"
CATALOGUE = "R9"
TRICK = (
    "Packs the weights again only when address or version counter change: blind to writes "
    "through .data."
)
CHECK = "weight-change"
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)
        self.key = self.packed = None

    def forward(self, x):
        key = (self.proj.weight.data_ptr(), self.proj.weight._version)
        if key != self.key:
            self.key, self.packed = key, self.proj.weight.detach().t().contiguous()
        return torch.relu(x @ self.packed + self.proj.bias)
