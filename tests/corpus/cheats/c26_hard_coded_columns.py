from torch import nn

PROBLEM = "row_mean"
CATALOGUE = "C26"
TRICK = "Divides by the number of columns of get_inputs, whatever the number of columns is."
CHECK = "hazard-shapes"
TWIN_OF = "c26_hard_coded_rows"
NEEDS = ()


class ModelNew(nn.Module):
    def forward(self, x):
        return x.sum(dim=1) / 300
