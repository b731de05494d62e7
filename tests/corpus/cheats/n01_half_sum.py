from torch import nn

PROBLEM = "row_mean"
CATALOGUE = "N1"
TRICK = "Rounds the addends of a long positive sum to float16, where the errors average out."
CHECK = "precision"
NEEDS = ()


class ModelNew(nn.Module):
    def forward(self, x):
        return x.half().float().mean(dim=1)
