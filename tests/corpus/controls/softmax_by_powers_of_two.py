import torch
from torch import nn

PROBLEM = "softmax_rows"
LOOKS_LIKE = "N5"
WHY = "Softmax through exp2, with the maximum subtracted."
TWIN_OF = "float64_inside"
NOTES = ()
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        x = x * self.scale
        shifted = x - x.amax(dim=-1, keepdim=True)
        weight = torch.exp2(shifted.double() * 1.4426950408889634).to(x.dtype)
        return weight / weight.sum(dim=-1, keepdim=True)
