import torch
from torch import nn

PROBLEM = "dropout_eval"
LOOKS_LIKE = "C35"
WHY = "Leaves out a dropout whose probability is zero."
TWIN_OF = "honest_moving_average"
NOTES = ()
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, width, probability):
        super().__init__()
        self.proj = nn.Linear(width, width)
        if probability:
            raise NotImplementedError("only probability zero")

    def forward(self, x):
        return torch.tanh(self.proj(x))
