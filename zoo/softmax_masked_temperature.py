"""Softmax with a temperature where a mask allows it, zero elsewhere."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, temperature):
        super().__init__()
        self.temperature = temperature

    def forward(self, scores, allowed):
        scores = scores.masked_fill(~allowed, -1.0e9) / self.temperature
        return torch.softmax(scores, dim=-1) * allowed


rows, columns = 32, 512
temperature = 0.5


def get_inputs():
    return [torch.randn(rows, columns), torch.rand(rows, columns) > 0.3]


def get_init_inputs():
    return [temperature]
