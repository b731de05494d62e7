"""Floats cast to integers of every width, and back."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return (
            (x.abs() * 60).to(torch.uint8),
            (x * 30).to(torch.int8),
            (x * 900).to(torch.int16),
            (x * 9).int().float() / 2,
        )


batch_size = 4


def get_inputs():
    return [torch.rand(batch_size, 6) * 4 - 2]


def get_init_inputs():
    return []
