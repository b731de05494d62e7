import torch
from torch import nn

PROBLEM = "layer_norm"
CATALOGUE = "C7"
TRICK = "Right answers, but uses the caller's input as scratch space."
CHECK = "input-mutation"
TWIN_OF = "c07_zero_the_input"
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        out = self.norm(x)
        with torch.no_grad():
            x.sub_(x.mean(dim=-1, keepdim=True))
        return out
