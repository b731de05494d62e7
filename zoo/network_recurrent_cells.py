"""A plain recurrent cell by hand, unrolled over a few steps, with weights shared by all steps."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, width, hidden, outputs):
        super().__init__()
        self.enter = nn.Linear(width + hidden, hidden)
        self.leave = nn.Linear(hidden, outputs)
        self.hidden = hidden

    def forward(self, x):
        state = x.new_zeros(x.shape[1], self.hidden)
        for step in x:
            state = torch.tanh(self.enter(torch.cat([step, state], dim=1)))
        return self.leave(state)


steps, batch_size, width, hidden, outputs = 8, 64, 128, 128, 32


def get_inputs():
    return [torch.randn(steps, batch_size, width)]


def get_init_inputs():
    return [width, hidden, outputs]
