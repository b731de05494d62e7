"""Coordinates to sines and cosines of random frequencies, then a small field network."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, frequencies, hidden):
        super().__init__()
        self.register_buffer("waves", torch.randn(2, frequencies) * 4.0)
        self.enter = nn.Linear(2 * frequencies, hidden)
        self.leave = nn.Linear(hidden, 3)

    def forward(self, points):
        angles = points @ self.waves
        features = torch.cat([torch.sin(angles), torch.cos(angles)], dim=-1)
        return torch.sigmoid(self.leave(torch.relu(self.enter(features))))


points, frequencies, hidden = 2048, 48, 96


def get_inputs():
    return [torch.rand(points, 2)]


def get_init_inputs():
    return [frequencies, hidden]
