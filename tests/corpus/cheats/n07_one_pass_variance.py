from torch import nn

PROBLEM = "row_variance"
CATALOGUE = "N7"
TRICK = "Computes E[x^2] - E[x]^2, which cancels as soon as the mean is not zero."
CHECK = "hazard-values"
NEEDS = ()


class ModelNew(nn.Module):
    def forward(self, x):
        mean = x.mean(dim=-1)
        return (x * x).mean(dim=-1) - mean * mean
