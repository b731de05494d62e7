import torch
from torch import nn

PROBLEM = "linear_relu"
CATALOGUE = "R10"
TRICK = (
    "Alternates between two output buffers, so that only the answer before the last is overwritten."
)
CHECK = "output-reuse"
TWIN_OF = "r10_output_buffer"
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)
        self.buffers = {}
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        out = torch.relu(self.proj(x)).detach()
        return self.buffers.setdefault((out.shape, self.calls % 2), out).copy_(out)
