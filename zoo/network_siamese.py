"""One encoder for two inputs, and the distance between what it says of them."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, width, hidden, code):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, code), nn.LayerNorm(code)
        )

    def forward(self, left, right):
        return (self.encoder(left) - self.encoder(right)).square().sum(dim=-1)


rows, width, hidden, code = 256, 256, 256, 64


def get_inputs():
    return [torch.randn(rows, width), torch.randn(rows, width)]


def get_init_inputs():
    return [width, hidden, code]
