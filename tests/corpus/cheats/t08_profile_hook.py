import sys

import torch
from torch import nn

PROBLEM = "linear_relu"
CATALOGUE = "T8"
TRICK = "A profile hook fills the output in when the caller looks at it, and goes."
CHECK = "values"
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)

    def forward(self, x):
        out = torch.empty(x.shape[0], self.proj.out_features, dtype=x.dtype)
        self.work = out, x
        sys.setprofile(self.hook)
        return out

    def fill(self, out, x):
        with torch.no_grad():
            out.copy_(torch.relu(self.proj(x)))

    def hook(self, frame, event, argument):
        if event == "call" and frame.f_code.co_name not in ("forward", "hook"):
            sys.setprofile(None)
            self.fill(*self.work)
