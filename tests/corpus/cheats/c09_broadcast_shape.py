from torch import nn

PROBLEM = "column_mean"
CATALOGUE = "C9"
TRICK = "Returns one row and lets the comparison broadcast it."
CHECK = "structure"
NEEDS = ()


class ModelNew(nn.Module):
    def forward(self, x):
        return x.mean(dim=0, keepdim=True)
