import torch
from torch import nn

PROBLEM = "hidden_state"
LOOKS_LIKE = "C35"
WHY = "Computes and binds the same state with another formula."
NOTES = ()
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
        self.level = torch.addcmul(x.mean(0), self.level, self.decay)
        y = self.w(x) + self.level
        self.h = torch.tanh(y if self.h is None else y + self.u(self.h))
        return self.h + self.h
