"""An autoencoder whose decoder uses the encoder's weight, transposed."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, width, code):
        super().__init__()
        self.encoder = nn.Linear(width, code)
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x):
        code = torch.tanh(self.encoder(x))
        return torch.sigmoid(F.linear(code, self.encoder.weight.t(), self.bias))


rows, width, code = 256, 384, 96


def get_inputs():
    return [torch.rand(rows, width)]


def get_init_inputs():
    return [width, code]
