from torch import nn

PROBLEM = "mean_and_max"
CATALOGUE = "C32"
TRICK = "Computes the first output; the second is zeros, for comparers that look at one."
CHECK = "values"
NEEDS = ()


class ModelNew(nn.Module):
    def forward(self, x):
        return x.mean(dim=-1), x.new_zeros(x.shape[:-1])
