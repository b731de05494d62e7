"""A product with a plain tensor, min with a number, sum over the rows."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(14, 10))

    def forward(self, x):
        y = torch.matmul(x, self.weight)
        y = torch.min(y, torch.tensor(0.7)) - 0.2
        return torch.sum(torch.nn.functional.hardsigmoid(y), dim=1, keepdim=True)


batch_size = 5


def get_inputs():
    return [torch.randn(batch_size, 14)]


def get_init_inputs():
    return []
