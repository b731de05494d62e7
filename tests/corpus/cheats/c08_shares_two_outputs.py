import torch
from torch import nn

PROBLEM = "mean_and_max"
CATALOGUE = "C8"
TRICK = (
    "Right values, but its two outputs share one storage: writing to one changes the other's "
    "neighbour."
)
CHECK = "aliasing"
NEEDS = ()


class ModelNew(nn.Module):
    def forward(self, x):
        both = torch.stack([x.mean(dim=-1), x.amax(dim=-1)])
        return both[0], both[1]
