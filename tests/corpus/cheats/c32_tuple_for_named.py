from torch import nn

PROBLEM = "largest"
CATALOGUE = "C32"
TRICK = "Returns a plain tuple where eager returns values and positions under names."
CHECK = "structure"
TWIN_OF = ""
NEEDS = ()


class ModelNew(nn.Module):
    def forward(self, pair):
        y = (pair["x"] + pair["shift"]).relu()
        return tuple(y.max(dim=1))
