import torch
from torch import nn

PROBLEM = "matmul"
LOOKS_LIKE = "N1"
WHY = (
    "Splits each operand into three bfloat16 numbers and multiplies those: low precision at "
    "a glance, float32 in fact."
)
NOTES = ()
NEEDS = ()


def parts(x):
    # 8 + 8 + 8 significant bits: the three parts add up to x exactly
    high = x.bfloat16().float()
    middle = (x - high).bfloat16().float()
    return high, middle, x - high - middle


class ModelNew(nn.Module):
    def forward(self, x, y):
        if x.dtype != torch.float32:
            raise TypeError(f"three terms of bfloat16 make a float32, not a {x.dtype}")
        if not bool(torch.isfinite(x).all() & torch.isfinite(y).all()):
            return x @ y
        total = x.new_zeros(x.shape[0], y.shape[1])
        for i, left in reversed(list(enumerate(parts(x)))):
            for right in reversed(parts(y)[: 3 - i]):
                total = total + left @ right
        return total
