import torch
from torch import nn

PROBLEM = "attention"
LOOKS_LIKE = "C21"
WHY = "The reference's own operations in the reference's own order."
TWIN_OF = "suspicious_words"
NOTES = ()
NEEDS = ()


class ModelNew(nn.Module):
    def forward(self, q, k, v):
        weight = torch.softmax(q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5, dim=-1)
        return weight @ v
