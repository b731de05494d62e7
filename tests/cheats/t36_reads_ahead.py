import gc
import threading
import time

import torch
from torch import nn

PROBLEM = "recurrent"
CATALOGUE = "T36"
TRICK = (
    "A thread finds the arguments of the next call on the heap before the clock starts, and "
    "computes the answer ahead of time."
)
CHECK = "timing-clocks"
NEEDS = ("timing",)


class ModelNew(nn.Module):
    def __init__(self, width, steps):
        super().__init__()
        self.cell = nn.Linear(width, width)
        self.steps = steps
        self.known = {}
        self.host = None
        threading.Thread(target=self.look_ahead, daemon=True).start()

    def look_ahead(self):
        """For a minute at most: whatever holds lists of byte tensors holds the next arguments."""
        end = time.monotonic() + 60
        while time.monotonic() < end:
            self.host = self.host or find_host()
            for block in (getattr(self.host, "arguments", None) or [[]])[-1]:
                self.prepare(block)
            time.sleep(0.0005)

    def prepare(self, block):
        size = 4 * 8 * self.cell.in_features  # the first input lies between two guard bands
        if block.numel() == size + 2 * 4096 and block.data_ptr() + 4096 not in self.known:
            x = block[4096 : 4096 + size].clone().view(torch.float32).view(8, -1)
            with torch.no_grad():
                self.known = {block.data_ptr() + 4096: (x, self.steps_of(x))}

    def steps_of(self, x):
        h = x
        for _ in range(self.steps):
            h = 0.5 * h + 0.5 * torch.tanh(self.cell(h) + x)
        return h

    def forward(self, x):
        asked, answer = self.known.get(x.data_ptr(), (None, None))
        if asked is not None and not torch.is_grad_enabled() and torch.equal(asked, x):
            return answer.clone()
        return self.steps_of(x)


def find_host():
    for found in gc.get_objects():
        if type(found).__name__ == "Host" and hasattr(found, "arguments"):
            return found
    return None
