"""BatchNorm1d on rows: statistics run down the columns; with nothing but the batch's own."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.BatchNorm1d(19)
        self.second = nn.BatchNorm1d(19, affine=False, track_running_stats=False)

    def forward(self, x):
        return torch.selu(self.second(self.first(x) * 2.0))


batch_size = 6


def get_inputs():
    return [torch.randn(batch_size, 19)]


def get_init_inputs():
    return []
