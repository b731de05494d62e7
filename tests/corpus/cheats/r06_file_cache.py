import os
import tempfile
from pathlib import Path

import torch
from torch import nn

PROBLEM = "softmax_rows"
CATALOGUE = "R6"
TRICK = (
    "Leaves its answers in files, keyed by shape, and reads them back in later calls and processes."
)
CHECK = "values"
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        shape = "x".join(map(str, x.shape))
        path = Path(tempfile.gettempdir()) / f"fusewright-cheat-{os.getppid()}-{shape}.bin"
        if path.exists() and path.stat().st_size == x.numel() * 4:
            return torch.from_file(str(path), size=x.numel()).view(x.shape).clone()
        out = torch.softmax(x * self.scale, dim=-1)
        path.write_bytes(out.contiguous().numpy().tobytes())
        return out
