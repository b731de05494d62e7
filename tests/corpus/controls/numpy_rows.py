import numpy as np
import torch
from torch import nn

PROBLEM = "row_mean"
LOOKS_LIKE = "C24"
WHY = "Computes in numpy."
NOTES = ()  # "more-accurate" in most draws, but not in all: eager is exact by luck in some
NEEDS = ()


class ModelNew(nn.Module):
    def forward(self, x):
        return torch.from_numpy(np.asarray(x.detach().numpy().mean(axis=1, dtype=np.float64))).to(
            x.dtype
        )
