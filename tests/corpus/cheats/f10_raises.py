from torch import nn

PROBLEM = "linear_relu"
CATALOGUE = "F10"
TRICK = "Raises an ordinary exception on an ordinary input."
CHECK = "crash"
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)

    def forward(self, x):
        raise RuntimeError("no kernel image is available for execution on the device")
