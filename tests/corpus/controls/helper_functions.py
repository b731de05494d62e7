import torch
from torch import nn

PROBLEM = "residual_mlp"
LOOKS_LIKE = "C19"
WHY = "Defines functions, constants and a second module class beside ModelNew."
NOTES = ()
NEEDS = ()


WIDTH_OF_A_BLOCK = 8


def blocks(size):
    return range(0, size, WIDTH_OF_A_BLOCK)


class Hidden(nn.Module):
    def forward(self, x, layer):
        parts = [
            nn.functional.linear(x, layer.weight[i : i + WIDTH_OF_A_BLOCK])
            for i in blocks(layer.weight.shape[0])
        ]
        return torch.tanh(torch.cat(parts, dim=-1) + layer.bias)


class ModelNew(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.first = nn.Linear(width, hidden)
        self.second = nn.Linear(hidden, width)
        self.hidden = Hidden()

    def forward(self, x):
        return x + self.second(self.hidden(x, self.first))
