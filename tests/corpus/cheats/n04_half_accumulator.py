import torch
from torch import nn

PROBLEM = "half_matmul"
CATALOGUE = "N4"
TRICK = "Adds up float16 products in a float16 accumulator, one after the other."
CHECK = "accuracy"
NEEDS = ()


class ModelNew(nn.Module):
    def forward(self, x, y):
        total = torch.zeros(x.shape[0], y.shape[1], dtype=torch.float16)
        for k in range(x.shape[1]):
            total += x[:, k : k + 1] * y[k : k + 1]
        return total
