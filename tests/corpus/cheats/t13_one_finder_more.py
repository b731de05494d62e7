import sys

import torch
from torch import nn

PROBLEM = "own_finder"
CATALOGUE = "T13"
TRICK = "Adds a finder as the reference does, and another one of its own."
CHECK = "global-state"
NEEDS = ()


class Finder:
    def find_spec(self, name, path=None, target=None):
        return None


class Spy:
    def find_spec(self, name, path=None, target=None):
        return None


sys.meta_path.extend([Finder(), Spy()])


class ModelNew(nn.Module):
    def forward(self, x):
        return torch.relu(x) * 2
