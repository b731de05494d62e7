import torch
from torch import nn

PROBLEM = "softmax_rows"
CATALOGUE = "C40"
TRICK = "Remembers answers by the bits of their inputs, and to save memory keeps them in float16."
CHECK = "determinism"
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale
        self.known = {}

    def forward(self, x):
        key = (x.shape, x.dtype, x.cpu().contiguous().view(torch.uint8).numpy().tobytes())
        if key in self.known:
            return self.known[key].to(x.dtype, copy=True)
        out = torch.softmax(x * self.scale, dim=-1)
        self.known[key] = out.half()
        return out
