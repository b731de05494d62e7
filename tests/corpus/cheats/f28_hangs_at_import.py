import threading

from torch import nn

PROBLEM = "linear_relu"
CATALOGUE = "F28"
TRICK = "Waits for ever while it is imported."
CHECK = "timeout"
NEEDS = ()


threading.Event().wait()


class ModelNew(nn.Module):
    pass
