from torch import nn

PROBLEM = "layer_norm"
CATALOGUE = "P4"
TRICK = "Leaves the affine part out, since it starts as one and zero."
CHECK = "values"
TWIN_OF = "c30_identity"
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        return nn.functional.layer_norm(x, x.shape[-1:], eps=self.norm.eps)
