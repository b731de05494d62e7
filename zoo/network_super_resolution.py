"""Convolutions, then channels to pixels, added to the image enlarged by interpolation."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, width, factor):
        super().__init__()
        self.enter = nn.Conv2d(3, width, 5, padding=2)
        self.leave = nn.Conv2d(width, 3 * factor**2, 3, padding=1)
        self.factor = factor

    def forward(self, x):
        fine = F.pixel_shuffle(self.leave(torch.tanh(self.enter(x))), self.factor)
        return fine + F.interpolate(x, scale_factor=self.factor, mode="bilinear")


batch_size, side, width = 2, 40, 16
factor = 2


def get_inputs():
    return [torch.rand(batch_size, 3, side, side)]


def get_init_inputs():
    return [width, factor]
