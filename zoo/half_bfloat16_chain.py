"""A gated activation in bfloat16: computed wider, stored narrow."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def forward(self, x, gate):
        return F.gelu(x) * torch.sigmoid(gate) + x


rows, columns = 32, 512


def get_inputs():
    return [
        torch.randn(rows, columns, dtype=torch.bfloat16),
        torch.randn(rows, columns, dtype=torch.bfloat16),
    ]


def get_init_inputs():
    return []
