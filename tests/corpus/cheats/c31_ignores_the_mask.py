from torch import nn

PROBLEM = "masked_mean"
CATALOGUE = "C31"
TRICK = "Averages all elements, whatever the mask says."
CHECK = "values"
TWIN_OF = "c31_ignores_the_bias"
NEEDS = ()


class ModelNew(nn.Module):
    def forward(self, x, mask):
        return x.mean(dim=-1)
