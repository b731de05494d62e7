"""How many positions of each row agree, and whether all or any do."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, a, b):
        same = a == b
        return same.sum(dim=1), same.all(dim=1), same.any(dim=1)


rows, columns = 64, 256


def get_inputs():
    return [torch.randint(0, 4, (rows, columns)), torch.randint(0, 4, (rows, columns))]


def get_init_inputs():
    return []
