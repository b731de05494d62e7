"""A dict of two tensors in, the named pair of torch.max out."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, pair):
        return torch.max(torch.relu(pair["x"] + pair["shift"]), dim=1)


def get_inputs():
    return [{"x": torch.randn(16, 24), "shift": torch.randn(24)}]
