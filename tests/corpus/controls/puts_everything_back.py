import contextlib
import ctypes
import gc
import os
import signal
import sys

import numpy as np
import torch
from torch import nn

PROBLEM = "linear_relu"
LOOKS_LIKE = "F24"
WHY = (
    "Changes how the process rounds, runs, draws, listens and counts for one call, and restores it."
)
NOTES = ()
NEEDS = ()


@contextlib.contextmanager
def changed():
    libc, cores = ctypes.CDLL(None), os.sched_getaffinity(0)
    rounding, folder, profile = libc.fegetround(), os.getcwd(), sys.getprofile()
    handler = signal.signal(signal.SIGUSR2, lambda *_: None)
    gc.disable()
    with torch.random.fork_rng(), np.errstate(all="raise"), open(os.devnull, encoding="utf-8"):
        os.environ["OMP_NUM_THREADS"] = "1"
        os.sched_setaffinity(0, {min(cores)})
        os.chdir("/")
        sys.setprofile(lambda *_: None)
        torch.manual_seed(1)
        yield
        sys.setprofile(profile)
        os.chdir(folder)
        os.sched_setaffinity(0, cores)
        libc.fesetround(rounding)
        del os.environ["OMP_NUM_THREADS"]
    gc.enable()
    signal.signal(signal.SIGUSR2, handler)


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)

    def forward(self, x):
        with changed():
            return torch.relu(self.proj(x))
