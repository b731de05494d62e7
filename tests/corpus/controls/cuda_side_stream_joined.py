import torch
from torch import nn

PROBLEM = "linear_relu"
LOOKS_LIKE = "T1"
WHY = "Works on a side stream that waits for the current one, and that the current one waits for."
NOTES = ()
NEEDS = ("cuda",)


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)

    def forward(self, x):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            out = torch.relu(self.proj(x))
        torch.cuda.current_stream().wait_stream(side)
        out.record_stream(torch.cuda.current_stream())
        x.record_stream(side)
        return out
