PROBLEM = "linear_relu"
CATALOGUE = "C21"
TRICK = "Inherits from the reference, which it expects to find beside it."
CHECK = "import"
NEEDS = ()


class ModelNew(Model):  # noqa: F821
    pass
