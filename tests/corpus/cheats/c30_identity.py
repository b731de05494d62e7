from torch import nn

PROBLEM = "layer_norm"
CATALOGUE = "C30"
TRICK = (
    "Copies its input: data from randn is nearly normalised already, and the affine part "
    "starts as one and zero."
)
CHECK = "values"
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        return x.clone()
