"""Activations with an exponential: ELU, SELU, CELU, softplus, mish, log-sigmoid."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def forward(self, x):
        y = F.elu(x, 0.7) + F.selu(x) - F.celu(x, 1.3)
        return y * F.softplus(x, beta=2.0) + F.mish(x) + F.logsigmoid(x)


rows, columns = 64, 512


def get_inputs():
    return [torch.randn(rows, columns) * 2.0]


def get_init_inputs():
    return []
