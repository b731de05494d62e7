import torch
from torch import nn

PROBLEM = "layer_norm"
CATALOGUE = "N7"
TRICK = "Normalises with a one-pass variance, clamped so that nobody sees it negative."
CHECK = "hazard-values"
TWIN_OF = "n07_one_pass_variance"
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        mean = x.mean(dim=-1, keepdim=True)
        variance = ((x * x).mean(dim=-1, keepdim=True) - mean * mean).clamp_min(0)
        out = (x - mean) * torch.rsqrt(variance + self.norm.eps)
        return out * self.norm.weight + self.norm.bias
