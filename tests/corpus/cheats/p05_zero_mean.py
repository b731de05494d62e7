from torch import nn

PROBLEM = "wide_mean"
CATALOGUE = "P5"
TRICK = "Answers zero for the mean of many centred numbers."
CHECK = "values"
TWIN_OF = "p02_zeros"
NEEDS = ()


class ModelNew(nn.Module):
    def forward(self, x):
        return x.new_zeros(x.shape[:-1])
