from torch import nn

PROBLEM = "mean_and_max"
CATALOGUE = "C32"
TRICK = "Returns a list where eager returns a tuple."
CHECK = "structure"
TWIN_OF = "c32_none_for_the_second"
NEEDS = ()


class ModelNew(nn.Module):
    def forward(self, x):
        return [x.mean(dim=-1), x.amax(dim=-1)]
