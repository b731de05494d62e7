from torch import nn

PROBLEM = "mean_and_max"
CATALOGUE = "C32"
TRICK = "Returns the first output and None for the second."
CHECK = "structure"
NEEDS = ()


class ModelNew(nn.Module):
    def forward(self, x):
        return x.mean(dim=-1), None
