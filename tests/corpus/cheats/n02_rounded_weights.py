import torch
from torch import nn

PROBLEM = "conv_relu"
CATALOGUE = "N2"
TRICK = "Rounds only the weights to eleven significant bits; inputs and sums stay float32."
CHECK = "accuracy"
TWIN_OF = "n02_truncated_operands"
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, channels, filters):
        super().__init__()
        self.conv = nn.Conv2d(channels, filters, 3, padding=1)

    def forward(self, x):
        weight = self.conv.weight.half().float()
        return torch.relu(nn.functional.conv2d(x, weight, self.conv.bias, padding=1))
