import torch
from torch import nn

PROBLEM = "matmul"
CATALOGUE = "N2"
TRICK = "Switches TF32 on for its own product and off again."
CHECK = "precision"
NEEDS = ("cuda",)


class ModelNew(nn.Module):
    def forward(self, x, y):
        before = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = True
        out = x @ y
        torch.backends.cuda.matmul.allow_tf32 = before
        return out
