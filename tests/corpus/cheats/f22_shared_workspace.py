import torch
from torch import nn

PROBLEM = "linear_relu"
CATALOGUE = "F22"
TRICK = "Keeps packed weights in a class attribute, which the instances overwrite for each other."
CHECK = "instances"
NEEDS = ()


class ModelNew(nn.Module):
    packed = None

    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)
        self.seen = None

    def forward(self, x):
        if self.seen is None or not torch.equal(self.seen, self.proj.weight):
            self.seen = self.proj.weight.detach().clone()
            ModelNew.packed = self.seen.t().contiguous()
        return torch.relu(x @ ModelNew.packed + self.proj.bias)
