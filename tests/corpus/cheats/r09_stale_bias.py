import torch
from torch import nn

PROBLEM = "residual_mlp"
CATALOGUE = "R9"
TRICK = "Reads every weight afresh except one bias, which it copies at the first call."
CHECK = "weight-change"
TWIN_OF = "r09_packed_once"
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.first = nn.Linear(width, hidden)
        self.second = nn.Linear(hidden, width)
        self.shift = None

    def forward(self, x):
        if self.shift is None:
            self.shift = self.second.bias.detach().clone()
        return x + torch.tanh(self.first(x)) @ self.second.weight.t() + self.shift
