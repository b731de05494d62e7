import torch
from torch import nn

PROBLEM = "scale_in_place"
LOOKS_LIKE = "C7"
WHY = "Changes its input in place, exactly as eager does, and returns it."
NOTES = ()
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x):
        with torch.no_grad():
            x.copy_(x * 2.0 + self.bias)
        return x
