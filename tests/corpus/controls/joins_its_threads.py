import threading

import torch
from torch import nn

PROBLEM = "linear_relu"
LOOKS_LIKE = "T4"
WHY = "Computes in two threads and waits for both before it returns."
NOTES = ("forward-only",)
NEEDS = ()


class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)

    @torch.no_grad()
    def forward(self, x):
        half = self.proj.out_features // 2
        out = x.new_empty(x.shape[0], self.proj.out_features)

        def work(part):
            with torch.no_grad():
                product = x @ self.proj.weight[part].t() + self.proj.bias[part]
                out[:, part] = torch.relu(product)

        threads = [
            threading.Thread(target=work, args=(p,)) for p in (slice(half), slice(half, None))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return out
