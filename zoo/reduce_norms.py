"""The 1-norm, 2-norm and largest magnitude of each row."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        one = torch.linalg.vector_norm(x, 1, dim=-1)
        two = torch.linalg.vector_norm(x, dim=-1)
        most = torch.linalg.vector_norm(x, float("inf"), dim=-1)
        return torch.stack([one, two, most], dim=-1)


rows, columns = 64, 512


def get_inputs():
    return [torch.randn(rows, columns)]


def get_init_inputs():
    return []
