import torch
from torch import nn

PROBLEM = "linear_relu"
CATALOGUE = "N1"
TRICK = "Multiplies in bfloat16 behind float32 inputs and outputs."
CHECK = "accuracy"
TWIN_OF = "n01_autocast"
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)

    def forward(self, x):
        product = x.bfloat16() @ self.proj.weight.bfloat16().t()
        return torch.relu(product.float() + self.proj.bias)
