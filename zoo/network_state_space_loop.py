"""A diagonal state-space layer, stepped through time in Python."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, width, states):
        super().__init__()
        self.decay = nn.Parameter(torch.rand(width, states))
        self.enter = nn.Parameter(torch.randn(width, states))
        self.leave = nn.Parameter(torch.randn(width, states) / states)

    def forward(self, x):
        decay = torch.exp(-F.softplus(self.decay))
        state = x.new_zeros(x.shape[0], *self.decay.shape)
        outputs = []
        for step in x.unbind(1):
            state = decay * state + self.enter * step.unsqueeze(-1)
            outputs.append((state * self.leave).sum(dim=-1))
        return torch.stack(outputs, dim=1)


batch_size, length, width, states = 4, 16, 256, 16


def get_inputs():
    return [torch.randn(batch_size, length, width)]


def get_init_inputs():
    return [width, states]
