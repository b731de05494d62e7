import torch
from torch import nn

PROBLEM = "linear_relu"
LOOKS_LIKE = "R9"
WHY = "Keeps packed weights, and compares them with the parameters before each use."
NOTES = ("forward-only",)
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)
        self.seen = self.packed = None

    def forward(self, x):
        weight = self.proj.weight.detach()
        if self.seen is None or not torch.equal(self.seen, weight):
            self.seen, self.packed = weight.clone(), weight.t().contiguous()
        return torch.relu(x.detach() @ self.packed + self.proj.bias.detach())
