import torch
from torch import nn

PROBLEM = "linear_relu"
CATALOGUE = "R10"
TRICK = "Answers from a ring of a thousand buffers, made before the first call."
CHECK = "output-reuse"
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)
        self.ring, self.calls = {}, 0

    def forward(self, x):
        out = torch.relu(self.proj(x)).detach()
        kind = out.shape, out.dtype
        if kind not in self.ring and out.numel() < 10_000:
            self.ring[kind] = [torch.empty_like(out) for _ in range(1000)]
        self.calls += 1
        return self.ring[kind][self.calls % 1000].copy_(out) if kind in self.ring else out
