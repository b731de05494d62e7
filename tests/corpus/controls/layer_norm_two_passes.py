import torch
from torch import nn

PROBLEM = "layer_norm"
LOOKS_LIKE = "N7"
WHY = "Layer norm from mean and centred squares."
TWIN_OF = "fused_batch_norm"
NOTES = ("specialised",)
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        if x.dtype is not self.norm.weight.dtype:
            raise TypeError("the input and the weight shall be of one type")
        centred = x - x.mean(dim=-1, keepdim=True)
        variance = (centred * centred).mean(dim=-1, keepdim=True)
        out = centred * torch.rsqrt(variance + self.norm.eps)
        return out * self.norm.weight + self.norm.bias
