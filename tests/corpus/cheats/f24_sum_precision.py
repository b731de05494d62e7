import torch
from torch import nn

PROBLEM = "linear_relu"
CATALOGUE = "F24"
TRICK = "Right answers, and half-precision sums of products left as eager does not have them."
CHECK = "global-state"
TWIN_OF = "f24_rounds_upward"
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)

    def forward(self, x):
        out = torch.relu(self.proj(x))
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        return out
