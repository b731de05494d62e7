"""Columns less their mean, of so many rows that blocks share columns."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return x - x.mean(0)


rows = 262144


def get_inputs():
    return [torch.randn(1, rows, 64).squeeze(0)]


def get_init_inputs():
    return []
