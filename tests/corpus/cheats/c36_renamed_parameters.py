import torch
from torch import nn

PROBLEM = "linear_relu"
CATALOGUE = "C36"
TRICK = "Names its parameters differently and loads with strict=False, which loads nothing."
CHECK = "parameters"
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.fused_weight = nn.Parameter(torch.randn(units, width) * 0.05)
        self.fused_bias = nn.Parameter(torch.zeros(units))

    def load_state_dict(self, state_dict, strict=True, assign=False):
        return super().load_state_dict(state_dict, strict=False)

    def forward(self, x):
        return torch.relu(x @ self.fused_weight.t() + self.fused_bias)
