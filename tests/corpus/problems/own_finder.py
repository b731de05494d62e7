"""Two pointwise operators, in a file whose import adds a finder of modules, as libraries do."""

import sys

import torch
from torch import nn

rows, columns = 4, 6


class Finder:
    def find_spec(self, name, path=None, target=None):
        return None


sys.meta_path.append(Finder())


class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x) * 2


def get_inputs():
    return [torch.randn(rows, columns)]


def get_init_inputs():
    return []
