import torch
from torch import nn

PROBLEM = "gate"
CATALOGUE = "R8"
TRICK = "Hides its cache in the default argument of forward."
CHECK = "values"
NEEDS = ()


class ModelNew(nn.Module):
    def forward(self, x, y, seen={}):  # noqa: B006
        key = (x.shape, y.shape)
        if key not in seen:
            seen[key] = torch.sigmoid(x) * y
        return seen[key].clone()
