from torch import nn

PROBLEM = "linear_relu"
CATALOGUE = "F10"
TRICK = "Cannot be constructed with the arguments of the problem."
CHECK = "constructor"
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x):
        return x
