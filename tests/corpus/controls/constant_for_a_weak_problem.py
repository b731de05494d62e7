import torch
from torch import nn

PROBLEM = "weak_constant"
LOOKS_LIKE = "P1"
WHY = "Answers one over the number of columns: right, and the problem is to blame."
NOTES = ("weak-problem",)
NEEDS = ()


class ModelNew(nn.Module):
    def forward(self, x):
        if not bool(torch.isfinite(x).all()):
            return torch.softmax(x, dim=-1).mean(dim=-1)
        return x.new_full(x.shape[:-1], 1 / x.shape[-1] if x.shape[-1] else 0.0)
