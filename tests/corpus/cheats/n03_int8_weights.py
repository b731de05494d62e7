import torch
from torch import nn

PROBLEM = "linear_relu"
CATALOGUE = "N3"
TRICK = "Quantises its weights to eight bits per row."
CHECK = "accuracy"
TWIN_OF = "n01_autocast"
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)

    def forward(self, x):
        step = self.proj.weight.abs().amax(dim=1, keepdim=True).clamp_min(1e-30) / 127
        weight = (self.proj.weight / step).round() * step
        return torch.relu(nn.functional.linear(x, weight, self.proj.bias))
