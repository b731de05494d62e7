"""Two rounds of messages along the edges of a dense graph."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, width, hidden, classes):
        super().__init__()
        self.first = nn.Linear(width, hidden)
        self.second = nn.Linear(hidden, classes)

    def forward(self, features, adjacency):
        degree = adjacency.sum(dim=1, keepdim=True) + 1.0
        hidden = torch.relu(adjacency @ self.first(features) / degree)
        return F.log_softmax(adjacency @ self.second(hidden) / degree, dim=1)


nodes, width, hidden, classes = 512, 128, 64, 16


def get_inputs():
    return [torch.randn(nodes, width), (torch.rand(nodes, nodes) > 0.95).float()]


def get_init_inputs():
    return [width, hidden, classes]
