from torch import nn

PROBLEM = "row_mean"
CATALOGUE = "N7"
TRICK = "Adds a large constant for luck and takes it away again: digits are lost."
CHECK = "accuracy"
TWIN_OF = "n11_naive_prefix_sum"
NEEDS = ()


class ModelNew(nn.Module):
    def forward(self, x):
        return (x + 4096.0).mean(dim=1) - 4096.0
