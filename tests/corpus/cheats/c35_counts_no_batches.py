import torch
from torch import nn

PROBLEM = "batch_norm"
CATALOGUE = "C35"
TRICK = "Updates the running statistics but not num_batches_tracked."
CHECK = "buffers"
TWIN_OF = "c35_forgets_running_statistics"
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm = nn.BatchNorm1d(channels)

    def forward(self, x):
        n = self.norm
        mean, variance = n.running_mean, n.running_var
        out = nn.functional.batch_norm(
            x, mean, variance, n.weight, n.bias, training=self.training, momentum=n.momentum
        )
        return torch.relu(out)
