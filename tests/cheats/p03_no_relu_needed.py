from torch import nn

PROBLEM = "positive_relu"
CATALOGUE = "P3"
TRICK = "Copies its input, since get_inputs draws nothing below zero."
CHECK = "hazard-values"
NEEDS = ()


class ModelNew(nn.Module):
    def forward(self, x):
        return x.clone()
