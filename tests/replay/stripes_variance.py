"""The variance of columns, of which there are few."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return x.var(1)


batch_size = 2


def get_inputs():
    return [torch.randn(batch_size, 65536, 32)]


def get_init_inputs():
    return []
