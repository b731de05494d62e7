import torch
from torch import nn

PROBLEM = "tied"
CATALOGUE = "R9"
TRICK = "Holds two weights where eager holds one: a write to one of them leaves the other behind."
CHECK = "weight-change"
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, tokens, width):
        super().__init__()
        self.embed = nn.Embedding(tokens, width)
        self.head = nn.Linear(width, tokens, bias=False)

    def forward(self, x):
        return torch.nn.functional.embedding(x, self.embed.weight) @ self.head.weight.T
