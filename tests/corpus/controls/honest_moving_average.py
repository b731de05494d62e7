import torch
from torch import nn

PROBLEM = "moving_average"
LOOKS_LIKE = "C35"
WHY = "Updates its buffer in train mode only, with another formula."
NOTES = ()
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.register_buffer("average", torch.zeros(width))

    def forward(self, x):
        if self.training:
            self.average.copy_(0.9 * self.average + 0.1 * x.detach().mean(dim=0))
        return x - self.average
