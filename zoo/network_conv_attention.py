"""Convolutions with norms, then attention between all pixels of the smaller image."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class ConvolutionBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.second = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.first_norm, self.second_norm = nn.BatchNorm2d(width), nn.BatchNorm2d(width)

    def forward(self, x):
        inner = F.gelu(self.first_norm(self.first(x)))
        return F.gelu(x + self.second_norm(self.second(inner)))


class AttentionBlock(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        batch, pixels, width = x.shape
        qkv = self.qkv(self.norm(x)).view(batch, pixels, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + self.proj(mixed)
        return x + self.mlp(self.mlp_norm(x))


class Model(nn.Module):
    def __init__(self, channels, width, heads):
        super().__init__()
        self.stem = nn.Conv2d(channels, width, 3, stride=2, padding=1, bias=False)
        self.stem_norm, self.down_norm = nn.BatchNorm2d(width), nn.BatchNorm2d(2 * width)
        self.convolutions = nn.Sequential(ConvolutionBlock(width), ConvolutionBlock(width))
        self.down = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1, bias=False)
        self.attention = nn.Sequential(
            AttentionBlock(2 * width, heads), AttentionBlock(2 * width, heads)
        )
        self.head = nn.Linear(2 * width, 10)

    def forward(self, x):
        x = self.convolutions(F.gelu(self.stem_norm(self.stem(x))))
        x = self.down_norm(self.down(x)).flatten(2).transpose(1, 2)
        return self.head(self.attention(x).mean(1))


batch_size, channels, width, side, heads = 4, 3, 16, 32, 2


def get_inputs():
    return [torch.rand(batch_size, channels, side, side)]


def get_init_inputs():
    return [channels, width, heads]
