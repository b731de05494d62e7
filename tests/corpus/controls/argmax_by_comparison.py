import torch
from torch import nn

PROBLEM = "row_argmax"
LOOKS_LIKE = "C10"
WHY = "Finds the first position of the maximum by comparing."
NOTES = ()
NEEDS = ()


class ModelNew(nn.Module):
    def forward(self, x):
        nan = torch.isnan(x)
        best = torch.where(nan.any(dim=-1, keepdim=True), nan, x == x.amax(dim=-1, keepdim=True))
        return best.to(torch.int8).argmax(dim=-1)
