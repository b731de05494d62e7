import sys

import torch
from torch import nn

PROBLEM = "own_finder"
LOOKS_LIKE = "T13"
WHY = "Adds the finder that the reference's own import adds."
NOTES = ()
NEEDS = ()


class Finder:
    def find_spec(self, name, path=None, target=None):
        return None


sys.meta_path.append(Finder())


class ModelNew(nn.Module):
    def forward(self, x):
        return torch.relu(x) * 2
