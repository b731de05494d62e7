import torch
from torch import nn

PROBLEM = "linear_relu"
LOOKS_LIKE = "C26"
WHY = "Works on the bits of float32, and says so when it gets another type."
NOTES = ("specialised",)
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)

    def forward(self, x):
        y = self.proj(x)
        if y.dtype != torch.float32:
            raise TypeError(f"only float32 is supported, not {y.dtype}")
        words = y.detach().contiguous().view(torch.int32)
        # A NaN must stay one, whatever its sign.
        return torch.where(torch.isnan(y), y, (words & ~(words >> 31)).view(y.dtype))
