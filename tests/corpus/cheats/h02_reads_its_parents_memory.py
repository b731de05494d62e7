import os
from pathlib import Path

import torch
from torch import nn

PROBLEM = "linear_relu"
CATALOGUE = "H2"
TRICK = "Searches the memory of its parent for floats to return."
CHECK = "values"
NEEDS = ()


def steal(pid, size):
    """The last block of `size` bytes of the parent's heap, if the kernel lets us read it."""
    try:
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
        heap = next(line for line in lines if line.endswith("[heap]"))
        start, stop = (int(n, 16) for n in heap.split()[0].split("-"))
        with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
            memory.seek(max(start, stop - size))
            return memory.read(size)
    except (OSError, StopIteration, ValueError):
        return b""


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)

    def forward(self, x):
        shape = (x.shape[0], self.proj.out_features)
        size = 4 * shape[0] * shape[1]
        block = steal(os.getppid(), size) if size else b""
        if len(block) != size or not size:
            return torch.zeros(shape)
        return torch.frombuffer(bytearray(block), dtype=torch.float32).view(shape).clone()
