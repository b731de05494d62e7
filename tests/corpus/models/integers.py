"""Integer and bool inputs: masks, comparisons, integer sums, casts."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x, i, mask):
        ids = i.clamp(0, 6) * 3 - 1
        y = torch.where(mask, x, x * 0.1) + ids.float()
        return y, (ids % 5).sum(-1), mask & (ids > 4), ids.to(torch.uint8)


batch_size = 4


def get_inputs():
    return [
        torch.randn(batch_size, 8),
        torch.randint(-3, 9, (batch_size, 8)),
        torch.rand(batch_size, 8) > 0.5,
    ]


def get_init_inputs():
    return []
