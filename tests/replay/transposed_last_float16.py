"""A transposed convolution of 16 bits that lies channels last."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = (
            nn.ConvTranspose2d(64, 64, 4, stride=2, padding=1)
            .half()
            .to(memory_format=torch.channels_last)
        )

    def forward(self, x):
        return torch.relu(self.conv(x))


batch_size = 16


def get_inputs():
    return [torch.randn(batch_size, 64, 56, 56).half().to(memory_format=torch.channels_last)]


def get_init_inputs():
    return []
