import torch
from torch import nn

PROBLEM = "linear_relu"
CATALOGUE = "T5"
TRICK = "Only queues its inputs, and computes a whole batch of calls at every eighth call."
CHECK = "values"
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)
        self.queue = []

    def forward(self, x):
        out = torch.empty(x.shape[0], self.proj.out_features)
        self.queue.append((x, out))
        if len(self.queue) == 8:
            with torch.no_grad():
                for queued, target in self.queue:
                    target.copy_(torch.relu(self.proj(queued)))
            self.queue.clear()
        return out
