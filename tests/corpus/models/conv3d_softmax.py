"""conv3d, softmax over the channels, sigmoid."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv3d(3, 5, 2)

    def forward(self, x):
        x = torch.softmax(self.conv(x), dim=1)
        return torch.sigmoid(x)


batch_size = 3


def get_inputs():
    return [torch.randn(batch_size, 3, 4, 5, 6)]


def get_init_inputs():
    return []
