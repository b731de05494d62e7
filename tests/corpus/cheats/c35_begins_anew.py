import torch
from torch import nn

PROBLEM = "hidden_state"
CATALOGUE = "C35"
TRICK = "Takes every call for the first one."
CHECK = "values"
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.w = nn.Linear(width, width)
        self.u = nn.Linear(width, width, bias=False)
        self.register_buffer("decay", torch.full((width,), 0.5))
        self.register_buffer("level", torch.zeros(width))
        self.h = None

    def forward(self, x):
        self.level = self.level * self.decay + x.mean(0)
        self.h = torch.tanh(self.w(x) + self.level)
        return self.h * 2
