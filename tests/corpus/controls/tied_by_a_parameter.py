import torch
from torch import nn

PROBLEM = "tied"
LOOKS_LIKE = "R9"
WHY = "One parameter under both names, in modules of its own kind."
NOTES = ()
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, tokens, width):
        super().__init__()
        self.embed, self.head = nn.Module(), nn.Module()
        self.head.weight = self.embed.weight = nn.Parameter(torch.randn(tokens, width))

    def forward(self, x):
        return self.embed.weight[x] @ self.embed.weight.T
