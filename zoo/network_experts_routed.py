"""Each row goes to the two experts that a gate likes best, and every expert sees only its rows."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Expert(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.enter = nn.Linear(width, hidden)
        self.gate = nn.Linear(width, hidden)
        self.leave = nn.Linear(hidden, width)

    def forward(self, x):
        x = self.norm(x)
        return self.leave(F.silu(self.gate(x)) * self.enter(x))


class Model(nn.Module):
    def __init__(self, width, hidden, experts, chosen):
        super().__init__()
        self.chosen = chosen
        self.router = nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList(Expert(width, hidden) for _ in range(experts))

    def forward(self, x):
        weights, picked = torch.topk(self.router(x).softmax(dim=-1), self.chosen, dim=-1)
        weights = weights / weights.sum(dim=-1, keepdim=True)
        result = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows, place = torch.where(picked == number)
            if rows.numel() == 0:
                continue
            made = expert(x[rows]) * weights[rows, place].unsqueeze(-1)
            result.index_add_(0, rows, made)
        return result


rows, width, hidden, experts, chosen = 512, 96, 192, 8, 2


def get_inputs():
    return [torch.randn(rows, width)]


def get_init_inputs():
    return [width, hidden, experts, chosen]
