"""Positions of extremes in transposed tensors are counted in the transposed order."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        y = x.permute(2, 0, 1) * 2.0
        return (
            y.argmax(),
            (y + x.sum()).argmin(),
            torch.relu(x).permute(0, 2, 1).flatten(1).argmax(1),
            *y.max(2),
        )


batch_size = 3


def get_inputs():
    return [torch.randn(batch_size, 4, 5)]


def get_init_inputs():
    return []
