"""A perceptron for each point, the largest of each feature, a head."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, width, classes):
        super().__init__()
        self.first = nn.Conv1d(3, width, 1)
        self.second = nn.Conv1d(width, 2 * width, 1)
        self.norm = nn.BatchNorm1d(2 * width)
        self.head = nn.Linear(2 * width, classes)

    def forward(self, points):
        x = torch.relu(self.norm(self.second(torch.relu(self.first(points)))))
        return self.head(x.max(dim=2)[0])


batch_size, count, width, classes = 8, 256, 48, 10


def get_inputs():
    return [torch.randn(batch_size, 3, count)]


def get_init_inputs():
    return [width, classes]
