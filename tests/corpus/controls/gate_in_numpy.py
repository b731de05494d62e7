import numpy as np
import torch
from torch import nn

PROBLEM = "gate"
LOOKS_LIKE = "C33"
WHY = "Two inputs, computed in float64 numpy; float32 only."
TWIN_OF = "numpy_rows"
NOTES = ("specialised",)
NEEDS = ()


class ModelNew(nn.Module):
    def forward(self, x, y):
        if x.dtype is not torch.float32 or y.dtype is not torch.float32:
            raise TypeError("float32 only")
        left, right = x.detach().numpy().astype(np.float64), y.detach().numpy()
        with np.errstate(over="ignore", invalid="ignore"):
            return torch.from_numpy((right / (1 + np.exp(-left))).astype(np.float32))
