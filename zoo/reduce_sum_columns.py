"""The sum of each column: the leading dimension goes."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x).sum(dim=0)


rows, columns = 32, 1024


def get_inputs():
    return [torch.randn(rows, columns)]


def get_init_inputs():
    return []
