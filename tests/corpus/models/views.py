"""Views between the steps: view, permute, transpose, unsqueeze, expand, flatten."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 1))

    def forward(self, x):
        y = x.view(x.size(0), 2, 6, 5).permute(0, 2, 1, 3) * self.weight.unsqueeze(-1)
        y = torch.relu(y.transpose(1, 2)).reshape(x.size(0), 2, 30)
        return (y + x.view(x.size(0), 2, 30)).flatten(1)


batch_size = 3


def get_inputs():
    return [torch.randn(batch_size, 60)]


def get_init_inputs():
    return []
