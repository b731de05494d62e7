import torch
from torch import nn

PROBLEM = "batch_norm"
LOOKS_LIKE = "C35"
WHY = "Batch norm written out: both modes, running statistics, the count of batches."
NOTES = ()
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm = nn.BatchNorm1d(channels)

    def forward(self, x):
        n = self.norm
        if not self.training:
            return torch.relu(
                (x - n.running_mean) * (n.weight / torch.sqrt(n.running_var + n.eps)) + n.bias
            )
        if x.shape[0] < 2:
            raise ValueError("batch statistics need more than one row")
        mean = x.mean(dim=0)
        centred = x - mean
        biased = (centred * centred).mean(dim=0)
        with torch.no_grad():
            n.num_batches_tracked += 1
            n.running_mean.lerp_(mean.detach(), n.momentum)
            n.running_var.lerp_(biased.detach() * (x.shape[0] / (x.shape[0] - 1)), n.momentum)
        return torch.relu(centred / torch.sqrt(biased + n.eps) * n.weight + n.bias)
