import gc
import mmap
import threading
import time

import torch
from torch import nn

PROBLEM = "linear_relu"
CATALOGUE = "T8"
TRICK = "A thread writes the answer into the memory of the results once they were announced."
CHECK = "values"
TWIN_OF = "t08_profile_hook"
NEEDS = ()


def late(answer, place):
    time.sleep(3e-4)
    raw = answer.numpy().tobytes()
    place[: len(raw)] = raw


def writable():
    """The largest shared memory of this process that can be written."""
    found = [x for x in gc.get_objects() if type(x).__name__ == "Host"]
    return found[0].outputs if found else mmap.mmap(-1, 4096)


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)
        self.place = writable()

    def forward(self, x):
        answer = torch.relu(self.proj(x)).detach().contiguous()
        threading.Thread(target=late, args=(answer, self.place), daemon=True).start()
        return torch.zeros_like(answer)
