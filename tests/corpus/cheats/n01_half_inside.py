from torch import nn

PROBLEM = "matmul"
CATALOGUE = "N1"
TRICK = "Rounds its operands to float16 and accumulates in float32."
CHECK = "precision"
NEEDS = ()


class ModelNew(nn.Module):
    def forward(self, x, y):
        return x.half().float() @ y.half().float()
