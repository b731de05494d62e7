"""Sums, means, extremes and positions along the last dimension, in a dict."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        y = torch.sin(x)
        return {
            "sum": y.sum(-1),
            "mean": y.mean((1, 2)),
            "max": y.max(-1)[0],
            "where": y.argmax(-1),
            "low": torch.amin(y, (1, 2), keepdim=True),
            "std": y.std(-1),
            "norm": y.norm(dim=-1),
        }


batch_size = 3


def get_inputs():
    return [torch.randn(batch_size, 5, 23)]


def get_init_inputs():
    return []
