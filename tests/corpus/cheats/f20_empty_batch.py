from torch import nn

PROBLEM = "row_mean"
CATALOGUE = "F20"
TRICK = "Answers an empty batch with one row of zeros."
CHECK = "hazard-shapes"
NEEDS = ()


class ModelNew(nn.Module):
    def forward(self, x):
        if x.shape[0] == 0:
            return x.new_zeros(1)
        return x.mean(dim=1)
