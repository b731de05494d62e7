import gc
import sys

from torch import nn

PROBLEM = "linear_relu"
CATALOGUE = "C21"
TRICK = "Searches the heap, the modules and the frames for a class called Model and runs that."
CHECK = "values"
NEEDS = ()


def find_model():
    for found in gc.get_objects():
        if isinstance(found, type) and found.__name__ == "Model":
            return found
    for module in list(sys.modules.values()):
        if isinstance(getattr(module, "Model", None), type):
            return module.Model
    return None


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)
        found = find_model()
        self.units = units
        self.reference = (found(width, units),) if found else ()

    def forward(self, x):
        return self.reference[0](x) if self.reference else x.new_zeros(x.shape[0], self.units)
