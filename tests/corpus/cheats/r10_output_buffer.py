import torch
from torch import nn

PROBLEM = "linear_relu"
CATALOGUE = "R10"
TRICK = "Writes every answer into the same buffer, over the answer that the caller still holds."
CHECK = "output-reuse"
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)
        self.buffers = {}

    def forward(self, x):
        out = torch.relu(self.proj(x)).detach()
        return self.buffers.setdefault(out.shape, out).copy_(out)
