from torch import nn

PROBLEM = "negate_twice"
CATALOGUE = "C8"
TRICK = "Returns its input itself, where eager returns equal values in memory of their own."
CHECK = "aliasing"
NEEDS = ()


class ModelNew(nn.Module):
    def forward(self, x):
        return x
