"""A diagonal matrix times a full one, written as a product."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, diagonal, matrix):
        return torch.diag(diagonal) @ matrix


rows, columns = 384, 512


def get_inputs():
    return [torch.randn(rows), torch.randn(rows, columns)]


def get_init_inputs():
    return []
