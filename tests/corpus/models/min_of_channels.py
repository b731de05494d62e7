"""conv2d, min over the channels, tanh twice."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)

    def forward(self, x):
        return torch.tanh(torch.tanh(torch.min(self.conv(x), dim=1, keepdim=True)[0]))


batch_size = 2


def get_inputs():
    return [torch.randn(batch_size, 3, 9, 8)]


def get_init_inputs():
    return []
