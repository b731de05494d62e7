"""An LSTM over a sequence, and a classifier on its last state."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, width, hidden, classes):
        super().__init__()
        self.lstm = nn.LSTM(width, hidden, num_layers=2, batch_first=True)
        self.head = nn.Linear(hidden, classes)

    def forward(self, x):
        outputs, _ = self.lstm(x)
        return torch.softmax(self.head(outputs[:, -1]), dim=-1)


batch_size, length, width, hidden, classes = 8, 16, 32, 48, 10


def get_inputs():
    return [torch.randn(batch_size, length, width)]


def get_init_inputs():
    return [width, hidden, classes]
