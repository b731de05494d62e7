from torch import nn

PROBLEM = "named_moments"
CATALOGUE = "C32"
TRICK = "Leaves one key out of the dictionary of outputs."
CHECK = "structure"
TWIN_OF = "c32_none_for_the_second"
NEEDS = ()


class ModelNew(nn.Module):
    def forward(self, x):
        return {"mean": x.mean(dim=-1)}
