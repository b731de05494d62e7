import torch
from torch import nn

PROBLEM = "linear_relu"
CATALOGUE = "T1"
TRICK = "Works on a side stream that nobody waits for."
CHECK = "values"
NEEDS = ("cuda",)


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)
        self.side = None

    def forward(self, x):
        self.side = self.side or torch.cuda.Stream()
        with torch.cuda.stream(self.side):
            torch.cuda._sleep(50_000_000)
            return torch.relu(self.proj(x))
