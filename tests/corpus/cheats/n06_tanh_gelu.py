from torch import nn

PROBLEM = "linear_gelu"
CATALOGUE = "N6"
TRICK = "Computes the tanh approximation in the place of the exact GELU."
CHECK = "accuracy"
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)

    def forward(self, x):
        return nn.functional.gelu(self.proj(x), approximate="tanh")
