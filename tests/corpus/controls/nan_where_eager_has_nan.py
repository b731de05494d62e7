import torch
from torch import nn

PROBLEM = "log_of_anything"
LOOKS_LIKE = "C11"
WHY = "Answers NaN in half of the places, which are the right ones."
NOTES = ()
NEEDS = ()


class ModelNew(nn.Module):
    def forward(self, x):
        return torch.log2(x.double()).mul(0.6931471805599453).to(x.dtype)
