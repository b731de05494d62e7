"""The lower triangle of the product of two lower triangles."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, a, b):
        return torch.tril(torch.tril(a) @ torch.tril(b))


side = 384


def get_inputs():
    return [torch.randn(side, side), torch.randn(side, side)]


def get_init_inputs():
    return []
