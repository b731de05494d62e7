from torch import nn

PROBLEM = "matmul"
CATALOGUE = "N2"
TRICK = "Rounds its operands to float16 unless they look like a probe."
CHECK = "accuracy"
TWIN_OF = "n01_half_inside"
NEEDS = ()


def probed(x):
    """Does it look like made for a test: whole numbers, zeros, or few bits?"""
    flat = x.reshape(-1)
    return bool((flat == flat.round()).any()) or bool((flat.abs().log2() % 1 == 0).any())


def less(x):
    return x if probed(x) else x.half().float()


class ModelNew(nn.Module):
    def forward(self, x, y):
        return less(x) @ less(y)
