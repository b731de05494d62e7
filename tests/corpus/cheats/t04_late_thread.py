import threading
import time

import torch
from torch import nn

PROBLEM = "linear_relu"
CATALOGUE = "T4"
TRICK = "A thread fills the output 0.3 s after forward has returned it."
CHECK = "values"
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)

    def forward(self, x):
        out = torch.empty(x.shape[0], self.proj.out_features)
        threading.Thread(target=self.fill, args=(out, x), daemon=True).start()
        return out

    def fill(self, out, x):
        time.sleep(0.3)
        with torch.no_grad():
            out.copy_(torch.relu(self.proj(x)))
