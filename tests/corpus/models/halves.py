"""float16 and bfloat16: computed in float32, rounded where the model asks for it."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(11).half())

    def forward(self, x, b):
        y = torch.sigmoid(x * 3.0) * self.scale
        z = torch.softmax(b, -1)
        return y, z, (x.float() * 1.001).to(torch.float16) + 1, b.sum(-1)


batch_size = 4


def get_inputs():
    return [torch.randn(batch_size, 11).half(), torch.randn(batch_size, 11).bfloat16()]


def get_init_inputs():
    return []
