import torch
from torch import nn

PROBLEM = "hidden_state"
CATALOGUE = "C35"
TRICK = "Reads its hidden state, and never writes the new one back."
CHECK = "structure"
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
        h = torch.zeros_like(x) if self.h is None else self.h
        self.level = self.level * self.decay + x.mean(0)
        return torch.tanh(self.w(x) + self.u(h) + self.level) * 2
