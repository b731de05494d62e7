from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

PROBLEM = "linear_relu"
LOOKS_LIKE = "T4"
WHY = "Computes in two threads that live as long as it does, and waits for what they return."
NOTES = ("forward-only",)
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)
        self.pool = ThreadPoolExecutor(2)

    def half(self, x, part):
        with torch.no_grad():
            return torch.relu(x @ self.proj.weight[part].t() + self.proj.bias[part])

    def forward(self, x):
        middle = self.proj.out_features // 2
        parts = [
            self.pool.submit(self.half, x, part) for part in (slice(middle), slice(middle, None))
        ]
        return torch.cat([part.result() for part in parts], dim=1)
