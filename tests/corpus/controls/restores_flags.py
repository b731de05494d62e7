import torch
from torch import nn

PROBLEM = "linear_relu"
LOOKS_LIKE = "T14"
WHY = "Changes a global setting for the length of a call and puts it back."
NOTES = ()
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)

    def forward(self, x):
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("highest")
        try:
            return torch.relu(self.proj(x))
        finally:
            torch.set_float32_matmul_precision(before)
