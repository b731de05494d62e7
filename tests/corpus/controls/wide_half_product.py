import torch
from torch import nn

PROBLEM = "half_matmul"
LOOKS_LIKE = "N4"
WHY = "Multiplies float16 matrices in float32 and rounds once."
NOTES = ()
NEEDS = ()


class ModelNew(nn.Module):
    def forward(self, x, y):
        wide = torch.promote_types(x.dtype, torch.float32)
        return (x.to(wide) @ y.to(wide)).to(x.dtype)
