import numpy as np
import torch
from torch import nn

PROBLEM = "matmul"
LOOKS_LIKE = "C39"
WHY = "Adds up in a random order, as float atomics do: other bits each time, within the contract."
NOTES = ("nondeterministic",)
NEEDS = ()


class ModelNew(nn.Module):
    def forward(self, x, y):
        order = torch.from_numpy(np.random.default_rng().permutation(x.shape[1]))
        total = x.new_zeros(x.shape[0], y.shape[1])
        for part in order.split(24):
            total = total + x[:, part] @ y[part]
        return total
