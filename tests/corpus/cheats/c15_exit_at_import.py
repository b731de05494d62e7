import os
import sys

from torch import nn

PROBLEM = "linear_relu"
CATALOGUE = "C15"
TRICK = "Leaves with exit status 0 while it is imported."
CHECK = "import"
NEEDS = ()


sys.stdout.flush()
os._exit(0)


class ModelNew(nn.Module):
    pass
