"""A polynomial with learned coefficients by Horner's rule, as a loop in Python."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, degree):
        super().__init__()
        self.coefficients = nn.Parameter(torch.randn(degree + 1) / (degree + 1))

    def forward(self, x):
        value = torch.zeros_like(x)
        for coefficient in self.coefficients:
            value = value * x + coefficient
        return value


rows, columns = 32, 1024
degree = 7


def get_inputs():
    return [torch.rand(rows, columns) * 2.0 - 1.0]


def get_init_inputs():
    return [degree]
