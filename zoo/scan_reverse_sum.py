"""The sum of everything from each element to the end: rewards to go, discounted by a mask."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, rewards, mask):
        return torch.flip(torch.cumsum(torch.flip(rewards * mask, [1]), dim=1), [1])


rows, columns = 32, 512


def get_inputs():
    return [torch.rand(rows, columns), (torch.rand(rows, columns) > 0.2).float()]


def get_init_inputs():
    return []
