"""Attributes that steer forward: a bool, a string, a list, a dict, None."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.residual = True
        self.kind = "gelu"
        self.weights = [0.25, 0.75]
        self.options = {"shift": 1.5}
        self.bias = None

    def forward(self, x):
        y = torch.nn.functional.gelu(x) if self.kind == "gelu" else torch.relu(x)
        y = y * self.weights[0] + self.options["shift"]
        if self.bias is not None:
            y = y + self.bias
        return y + x if self.residual else y


batch_size = 3


def get_inputs():
    return [torch.randn(batch_size, 7)]


def get_init_inputs():
    return []
