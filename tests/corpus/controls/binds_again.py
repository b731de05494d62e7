import torch
from torch import nn

PROBLEM = "linear_relu"
LOOKS_LIKE = "R9"
WHY = "Keeps its weight packed, and packs again where parameter, memory or content are others."
NOTES = ("forward-only",)
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)
        self.bound = None
        self.copy = self.packed = torch.empty(0)

    def forward(self, x):
        weight = self.proj.weight
        kept = self.bound is not None and self.bound[0] is weight
        kept = kept and self.bound[1] == weight.data_ptr() and torch.equal(self.copy, weight)
        if not kept:
            self.bound = weight, weight.data_ptr()
            self.copy = weight.detach().clone()
            self.packed = self.copy.t().contiguous()
        return torch.relu(x.detach() @ self.packed + self.proj.bias.detach())
