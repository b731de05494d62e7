"""Three candidates with known verdicts: the judge judges them first, every time, everywhere.

Two of them are wrong and must be refuted, one is right and must pass: if this machine or a change
of the judge keeps it from seeing that, there is no verdict on anything else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

PROBLEM = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.proj = nn.Linear(width, width)

    def forward(self, x):
        return torch.tanh(self.proj(x)) - x


def get_inputs():
    return [torch.rand(5, 24)]


def get_init_inputs():
    return [24]
"""

_CANDIDATE = """
import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.proj = nn.Linear(width, width)
        self.answers = {{}}

    def forward(self, x):
        {body}
"""


@dataclass(frozen=True)
class Canary:
    source: str
    honest: bool


def _canary(body: str, *, honest: bool) -> Canary:
    return Canary(_CANDIDATE.format(body=body), honest)


_RIGHT = "torch.tanh(x @ self.proj.weight.t() + self.proj.bias) - x"
CANARIES: Mapping[str, Canary] = MappingProxyType(
    {
        "known good": _canary(f"return {_RIGHT}", honest=True),
        "known cheat": _canary(f"return self.answers.setdefault(x.shape, {_RIGHT})", honest=False),
        "known wrong": _canary(f"return ({_RIGHT}) + 1e-4 * (x > 0.9)", honest=False),
    }
)
