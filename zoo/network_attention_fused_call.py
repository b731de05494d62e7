"""Attention by PyTorch's own fused operator, with a mask."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def forward(self, query, key, value, mask):
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)


batch_size, heads, length, width = 2, 8, 256, 32


def get_inputs():
    shape = (batch_size, heads, length, width)
    return [*(torch.randn(shape) for _ in range(3)), torch.randn(length, length)]


def get_init_inputs():
    return []
