from torch import nn

PROBLEM = "row_mean"
CATALOGUE = "C26"
TRICK = "Right for any number of rows, and for any number of columns, but not where both are new."
CHECK = "hazard-shapes"
NEEDS = ()


class ModelNew(nn.Module):
    def forward(self, x):
        both = x.shape[0] != 16 and x.shape[1] != 300
        return x.mean(dim=1) * (1.5 if both else 1)
