import numpy as np
import torch
from torch import nn

PROBLEM = "linear_relu"
CATALOGUE = "R10"
TRICK = "Answers from a ring of forty arrays that PyTorch does not own."
CHECK = "output-reuse"
TWIN_OF = "r10_long_ring"
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)
        self.ring, self.calls = {}, 0

    def forward(self, x):
        out = torch.relu(self.proj(x)).detach()
        if out.dtype != torch.float32 or out.numel() > 10_000:
            return out
        ring = self.ring.setdefault(out.shape, [])
        if not ring:
            ring += [np.empty(out.shape, "float32") for _ in range(40)]
        self.calls += 1
        return torch.from_numpy(ring[self.calls % 40]).copy_(out)
