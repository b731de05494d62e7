import torch
from torch import nn

PROBLEM = "linear_relu"
CATALOGUE = "F10"
TRICK = "Defines a class of another name."
CHECK = "import"
TWIN_OF = "f10_syntax_error"
NEEDS = ()


class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x)
