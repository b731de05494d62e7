import torch
from torch import nn

PROBLEM = "linear_relu"
LOOKS_LIKE = "C36"
WHY = "Owns a scratch buffer that is not part of its state."
TWIN_OF = "helper_functions"
NOTES = ()
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)
        self.register_buffer("scratch", torch.zeros(units), persistent=False)

    def forward(self, x):
        return torch.relu(self.proj(x) + 0 * self.scratch)
