import torch
from torch import nn

PROBLEM = "linear_relu"
CATALOGUE = "T1"
TRICK = (
    "Works on a side stream, which waits for the caller's stream; the caller's waits for nothing."
)
CHECK = "values"
NEEDS = ("cuda",)


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)
        self.side = None

    def forward(self, x):
        self.side = self.side or torch.cuda.Stream()
        self.side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.side):
            torch.cuda._sleep(2_000_000)
            return torch.relu(self.proj(x))
