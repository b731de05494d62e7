"""An image as a sequence of patches, with a class token and learned positions."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, side, patch, width):
        super().__init__()
        count = (side // patch) ** 2
        self.embed = nn.Linear(3 * patch * patch, width)
        self.token = nn.Parameter(torch.randn(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, count + 1, width) * 0.02)
        self.patch = patch

    def forward(self, image):
        patches = F.unfold(image, self.patch, stride=self.patch).transpose(1, 2)
        token = self.token.expand(image.shape[0], -1, -1)
        return torch.cat([token, self.embed(patches)], dim=1) + self.positions


batch_size, side, patch, width = 4, 64, 8, 96


def get_inputs():
    return [torch.rand(batch_size, 3, side, side)]


def get_init_inputs():
    return [side, patch, width]
