import torch
from torch import nn

PROBLEM = "batch_norm"
CATALOGUE = "C35"
TRICK = "Uses batch statistics in eval mode too."
CHECK = "mode"
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm = nn.BatchNorm1d(channels)

    def forward(self, x):
        n = self.norm
        out = torch.relu(
            nn.functional.batch_norm(
                x, None, None, weight=n.weight, bias=n.bias, training=True, eps=n.eps
            )
        )
        if self.training:
            with torch.no_grad():
                n.num_batches_tracked += 1
                n.running_mean.lerp_(x.mean(dim=0), n.momentum)
                n.running_var.lerp_(x.var(dim=0), n.momentum)
        return out
