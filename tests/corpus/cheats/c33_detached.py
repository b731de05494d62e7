from torch import nn

PROBLEM = "linear_gelu"
CATALOGUE = "C33"
TRICK = "Right values without a grad_fn, where eager's can be differentiated."
CHECK = "gradients"
NEEDS = ("grad",)


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)

    def forward(self, x):
        return nn.functional.gelu(self.proj(x)).detach()
