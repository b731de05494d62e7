import torch
from torch import nn

PROBLEM = "softmax_rows"
LOOKS_LIKE = "R10"
WHY = "Keeps scratch memory between calls; its answers are fresh."
NOTES = ()
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale
        self.scratch = {}

    def forward(self, x):
        room = self.scratch.setdefault(x.shape, torch.empty(x.shape, dtype=x.dtype))
        torch.mul(x.detach(), self.scale, out=room)
        return torch.softmax(room, dim=-1)
