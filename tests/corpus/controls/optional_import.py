from torch import nn

PROBLEM = "linear_gelu"
LOOKS_LIKE = "C22"
WHY = "Tries an import that is missing and goes on without it."
TWIN_OF = "helper_functions"
NOTES = ()
NEEDS = ()


try:
    import a_package_that_is_not_installed as accelerated
except ImportError:
    accelerated = None


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)

    def forward(self, x):
        return nn.functional.gelu(self.proj(x)) if accelerated is None else accelerated.run(x)
