"""Convolutions, pooling and linear layers: digits in, class scores out."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5, padding=2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.linear1 = nn.Linear(16 * 5 * 5, 120)
        self.linear2 = nn.Linear(120, 84)
        self.linear3 = nn.Linear(84, classes)

    def forward(self, x):
        x = F.max_pool2d(torch.relu(self.conv1(x)), 2)
        x = F.max_pool2d(torch.relu(self.conv2(x)), 2)
        x = torch.relu(self.linear1(x.flatten(1)))
        return F.log_softmax(self.linear3(torch.relu(self.linear2(x))), dim=1)


batch_size, classes = 64, 10


def get_inputs():
    return [torch.rand(batch_size, 1, 28, 28)]


def get_init_inputs():
    return [classes]
