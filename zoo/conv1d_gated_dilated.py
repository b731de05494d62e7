"""A dilated convolution of a sequence, tanh of one half times sigmoid of the other."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, channels, dilation):
        super().__init__()
        self.conv = nn.Conv1d(channels, 2 * channels, 3, padding=dilation, dilation=dilation)

    def forward(self, x):
        signal, gate = self.conv(x).chunk(2, dim=1)
        return x + torch.tanh(signal) * torch.sigmoid(gate)


batch_size, channels, length = 4, 32, 1024
dilation = 4


def get_inputs():
    return [torch.randn(batch_size, channels, length)]


def get_init_inputs():
    return [channels, dilation]
