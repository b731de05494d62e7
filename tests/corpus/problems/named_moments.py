"""A dictionary of outputs: mean and variance of every row."""

import torch
from torch import nn

rows, columns = 24, 80


class Model(nn.Module):
    def forward(self, x):
        return {"mean": x.mean(dim=-1), "variance": x.var(dim=-1, unbiased=False)}


def get_inputs():
    return [torch.randn(rows, columns)]


def get_init_inputs():
    return []
