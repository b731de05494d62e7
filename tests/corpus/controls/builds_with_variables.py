import os

import torch
from torch import nn

PROBLEM = "linear_relu"
LOOKS_LIKE = "F24"
WHY = "Says in its environment for which processors, and with what, its extension would be built."
NOTES = ()
NEEDS = ()


os.environ["TORCH_CUDA_ARCH_LIST"] = "9.0a"
os.environ.setdefault("CXX", "g++")
os.environ["PATH"] = os.pathsep.join((os.environ["PATH"], "/usr/local/cuda/bin"))


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)

    def forward(self, x):
        return torch.relu(self.proj(x))
