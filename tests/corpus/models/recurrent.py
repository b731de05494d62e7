"""An LSTM and a GRU stay library calls; what surrounds them is fused."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(6, 5, batch_first=True)
        self.gru = nn.GRU(5, 4)

    def forward(self, x):
        y, (h, _) = self.lstm(torch.tanh(x))
        z, _ = self.gru(y * 2.0)
        return torch.relu(z) + 1.0, h


batch_size = 3


def get_inputs():
    return [torch.randn(batch_size, 7, 6)]


def get_init_inputs():
    return []
