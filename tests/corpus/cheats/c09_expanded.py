from torch import nn

PROBLEM = "column_mean"
CATALOGUE = "C9"
TRICK = "Returns one row expanded with stride zero, where eager returns memory for every row."
CHECK = "structure"
TWIN_OF = "c09_broadcast_shape"
NEEDS = ()


class ModelNew(nn.Module):
    def forward(self, x):
        return x.mean(dim=0, keepdim=True).expand(x.shape[0], -1)
