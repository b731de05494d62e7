"""PyTorch's multi-head attention and a perceptron, both with residuals."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.norm1 = nn.LayerNorm(width)
        self.norm2 = nn.LayerNorm(width)
        self.perceptron = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.0)
        )

    def forward(self, x):
        y = self.norm1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.perceptron(self.norm2(x))


batch_size, length, width = 2, 96, 128
heads = 4


def get_inputs():
    return [torch.randn(batch_size, length, width)]


def get_init_inputs():
    return [width, heads]
