"""Red, green and blue to luma and two colour differences, stacked again."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, image):
        red, green, blue = image.unbind(1)
        luma = 0.299 * red + 0.587 * green + 0.114 * blue
        return torch.stack([luma, 0.564 * (blue - luma), 0.713 * (red - luma)], dim=1)


batch_size, side = 4, 56


def get_inputs():
    return [torch.rand(batch_size, 3, side, side)]


def get_init_inputs():
    return []
