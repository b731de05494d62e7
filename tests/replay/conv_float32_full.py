"""A convolution in full float32: PyTorch's own one of few channels does not round."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(8, 64, 5, padding=2)

    def forward(self, x):
        return torch.relu(self.conv(x))


batch_size = 16


def get_inputs():
    return [torch.randn(batch_size, 8, 112, 112)]


def get_init_inputs():
    return []
