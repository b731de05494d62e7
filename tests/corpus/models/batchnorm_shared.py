"""One BatchNorm used twice: its running statistics are updated twice, in order."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x):
        return self.norm(x) + self.norm(x * 2 + 1)


batch_size = 3


def get_inputs():
    return [torch.randn(batch_size, 4, 11)]


def get_init_inputs():
    return []
