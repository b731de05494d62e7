import gc
import threading
import time

import torch
from torch import nn

PROBLEM = "linear_relu"
CATALOGUE = "T8"
TRICK = "A thread writes the answer into a GPU's shared memory once the results were announced."
CHECK = "values"
NEEDS = ("cuda",)


def late(answer, place):
    time.sleep(5e-3)
    with torch.cuda.stream(torch.cuda.Stream()):
        place[: answer.numel() * 4].copy_(answer.view(-1).view(torch.uint8))


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)
        hosts = [x for x in gc.get_objects() if type(x).__name__ == "Host"]
        self.place = hosts[0].outputs.device if hosts else None

    def forward(self, x):
        answer = torch.relu(self.proj(x)).detach().contiguous()
        if self.place is not None:
            torch.cuda.synchronize()
            threading.Thread(target=late, args=(answer, self.place), daemon=True).start()
        return torch.zeros_like(answer)
