import torch
from torch import nn

PROBLEM = "batch_norm"
CATALOGUE = "C35"
TRICK = "Updates the running variance with the biased estimate, a factor (n-1)/n off."
CHECK = "buffers"
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm = nn.BatchNorm1d(channels)

    def forward(self, x):
        n = self.norm
        if not self.training:
            return torch.relu(n(x))
        with torch.no_grad():
            n.num_batches_tracked += 1
            n.running_mean.lerp_(x.mean(dim=0), n.momentum)
            n.running_var.lerp_(x.var(dim=0, unbiased=False), n.momentum)
        out = nn.functional.batch_norm(x, None, None, n.weight, n.bias, training=True, eps=n.eps)
        return torch.relu(out)
