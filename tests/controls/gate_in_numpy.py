import numpy as np
import torch
from torch import nn

PROBLEM = "gate"
LOOKS_LIKE = "C33"
WHY = "Two inputs, computed in float64 numpy."
TWIN_OF = "numpy_rows"
NOTES = ("more-accurate",)
NEEDS = ()


class ModelNew(nn.Module):
    def forward(self, x, y):
        left, right = x.detach().numpy().astype(np.float64), y.detach().numpy()
        with np.errstate(over="ignore", invalid="ignore"):
            return torch.from_numpy((right / (1 + np.exp(-left))).astype(np.float32))
