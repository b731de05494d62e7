import torch
from torch import nn

PROBLEM = "prefix_sum"
CATALOGUE = "N4"
TRICK = "Keeps its running sum in float16 between blocks of sixteen elements."
CHECK = "accuracy"
NEEDS = ()


class ModelNew(nn.Module):
    def forward(self, x):
        blocks, carry = [], x.new_zeros(*x.shape[:-1], 1)
        for block in x.split(16, dim=-1):
            blocks.append(carry + torch.cumsum(block, dim=-1))
            carry = blocks[-1][..., -1:].half().float()
        return torch.cat(blocks, dim=-1) if blocks else x.clone()
