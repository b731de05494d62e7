PROBLEM = "linear_relu"
CATALOGUE = "C21"
TRICK = "Imports the problem file as a module and uses its Model."
CHECK = "import"
TWIN_OF = "c21_inherits_the_reference"
NEEDS = ()


from linear_relu import Model  # noqa: E402


class ModelNew(Model):
    pass
