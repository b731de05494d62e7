"""A transposed convolution that lies channels last."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.ConvTranspose2d(128, 128, 4, stride=2, padding=1).to(
            memory_format=torch.channels_last
        )

    def forward(self, x):
        return torch.relu(self.conv(x))


batch_size = 16


def get_inputs():
    return [torch.randn(batch_size, 128, 32, 32).to(memory_format=torch.channels_last)]


def get_init_inputs():
    return []
