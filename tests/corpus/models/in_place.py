"""In-place operators on intermediate results, and on a view of one."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        y = self.linear(x)
        y.add_(1.0).mul_(x)
        y[:, :3].zero_()
        torch.relu_(y)
        return y


batch_size = 5


def get_inputs():
    return [torch.randn(batch_size, 8)]


def get_init_inputs():
    return []
