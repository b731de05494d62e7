from torch import nn

PROBLEM = "positive_relu"
CATALOGUE = "P3"
TRICK = "Copies its input, since get_inputs draws nothing below zero."
CHECK = "hazard-values"
TWIN_OF = "p03_answers_for_zero"
NEEDS = ()


class ModelNew(nn.Module):
    def forward(self, x):
        return x.clone()
