import torch
from torch import nn

PROBLEM = "matmul"
CATALOGUE = "N2"
TRICK = "Cuts thirteen bits off its operands, as TF32 tensor cores do, and multiplies exactly."
CHECK = "precision"
NEEDS = ()


def tf32(x):
    """The operand with its last 13 bits cut off."""
    return (x.contiguous().view(torch.int32) & ~0x1FFF).view(torch.float32)


class ModelNew(nn.Module):
    def forward(self, x, y):
        return tf32(x) @ tf32(y)
