"""PyTorch's encoder: equal layers one behind the other."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, width, heads, depth):
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0.0, batch_first=True, activation="gelu"
        )
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)

    def forward(self, x):
        return self.encoder(x)


batch_size, length, width = 2, 64, 96
heads, depth = 4, 5


def get_inputs():
    return [torch.randn(batch_size, length, width)]


def get_init_inputs():
    return [width, heads, depth]
