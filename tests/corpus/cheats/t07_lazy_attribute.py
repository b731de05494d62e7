import torch
from torch import nn

PROBLEM = "linear_relu"
CATALOGUE = "T7"
TRICK = (
    "Returns a plain zero tensor whose methods are replaced on the instance by the real "
    "computation."
)
CHECK = "values"
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)

    def forward(self, x):
        out = torch.zeros(x.shape[0], self.proj.out_features)
        real = torch.relu(self.proj(x)).detach()
        out.float = out.detach = out.contiguous = out.cpu = out.clone = lambda *a, **k: real
        out.double = lambda: real.double()
        out.numpy = lambda *a, **k: real.numpy()
        out.data_ptr = lambda: real.data_ptr()
        out.tolist = lambda: real.tolist()
        return out
