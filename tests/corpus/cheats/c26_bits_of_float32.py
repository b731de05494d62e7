import torch
from torch import nn

PROBLEM = "linear_relu"
CATALOGUE = "C26"
TRICK = (
    "Clears the negative numbers by their bits, taking whatever comes for float32 without a look."
)
CHECK = "hazard-dtypes"
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)

    def forward(self, x):
        y = self.proj(x)
        words = y.detach().contiguous().view(torch.int32)
        return torch.where(torch.isnan(y), y, (words & ~(words >> 31)).view(y.dtype))
