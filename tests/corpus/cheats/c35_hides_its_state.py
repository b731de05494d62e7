import torch
from torch import nn

PROBLEM = "hidden_state"
CATALOGUE = "C35"
TRICK = "Goes on from a copy of its state that nobody can set."
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
        h = getattr(self, "hidden", None)
        h = torch.zeros_like(x) if h is None else h
        self.level = self.level * self.decay + x.mean(0)
        self.h = self.hidden = torch.tanh(self.w(x) + self.u(h) + self.level)
        return self.h * 2
