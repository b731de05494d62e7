import torch
from torch import nn

PROBLEM = "gate"
CATALOGUE = "N9"
TRICK = "Scales its input into the range of float16 first, so that only the precision is lost."
CHECK = "accuracy"
TWIN_OF = "n10_rounded_output"
NEEDS = ()


class ModelNew(nn.Module):
    def forward(self, x, y):
        top = y.abs().max().clamp_min(1e-30) if y.numel() else 1.0
        return torch.sigmoid(x) * ((y / top).half().float() * top)
