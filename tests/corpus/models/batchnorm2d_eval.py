"""BatchNorm2d with its running statistics, LeakyReLU."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm2d(5).eval()
        self.norm.running_mean.uniform_(-1, 1)
        self.norm.running_var.uniform_(0.5, 2)

    def forward(self, x):
        return torch.nn.functional.leaky_relu(self.norm(x), 0.2)


batch_size = 4


def get_inputs():
    return [torch.randn(batch_size, 5, 6, 3)]


def get_init_inputs():
    return []
