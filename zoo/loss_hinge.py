"""Hinge loss for labels of plus and minus one."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, prediction, label):
        return torch.clamp(1.0 - prediction * label, min=0.0).mean(dim=-1)


rows, columns = 32, 512


def get_inputs():
    return [torch.randn(rows, columns), torch.randint(0, 2, (rows, columns)).float() * 2 - 1]


def get_init_inputs():
    return []
