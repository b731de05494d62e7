"""Tensors that are one, or lie in one memory: pushed, read back, doubled and probed as such."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.func import functional_call

from fusewright.judge.evidence import tied_tensors
from fusewright.judge.evidence.float64_twins import Doubles
from fusewright.judge.evidence.tied_tensors import each, first_names
from tests.support.judge_in_one_process import failures, honest, judged

REST = """
def get_init_inputs():
    return []
"""
# Name -> a problem, and what a candidate would write to forget about it.
TIED = {
    "one weight under two names": (
        """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.head = nn.Linear(8, 20, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        return self.head(self.embed(tokens))

def get_inputs():
    return [torch.randint(0, 20, (4, 6))]
""",
        ("self.head.weight = self.embed.weight", "pass"),
    ),
    "one buffer of two modules": (
        """
class Scale(nn.Module):
    def __init__(self, table):
        super().__init__()
        self.register_buffer("table", table)

    def forward(self, x):
        return x * self.table

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        table = torch.rand(5) + 0.5
        self.first, self.second = Scale(table), Scale(table)

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))

def get_inputs():
    return [torch.randn(4, 5)]
""",
        ("Scale(table), Scale(table)", "Scale(table), Scale(table.clone())"),
    ),
    "one module in two places": (
        """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(6)
        self.layers = nn.Sequential(nn.Linear(6, 6), self.norm, nn.ReLU(), self.norm)

    def forward(self, x):
        return self.layers(x)

def get_inputs():
    return [torch.randn(8, 6)]
""",
        ("nn.ReLU(), self.norm", "nn.ReLU(), nn.BatchNorm1d(6)"),
    ),
    "parameters in one memory": (
        """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        every = torch.randn(3, 8, 8)
        self.query, self.key = nn.Parameter(every[0]), nn.Parameter(every[1])
        self.both = nn.Parameter(every[:2])

    def forward(self, x):
        return (x @ self.query) * (x @ self.key) + x @ self.both.sum(0)

def get_inputs():
    return [torch.randn(4, 8)]
""",
        ("x @ self.both.sum(0)", "x @ self.both[0]"),
    ),
}


@pytest.mark.parametrize("name", TIED)
def test_tied_as_eager(name: str, tmp_path: Path) -> None:
    problem = TIED[name][0] + REST
    assert not failures(judged(tmp_path, problem, honest(problem)))


@pytest.mark.parametrize("name", TIED)
def test_not_tied_is_refuted(name: str, tmp_path: Path) -> None:
    problem, (tied, untied) = TIED[name][0] + REST, TIED[name][1]
    assert tied in problem
    rows = judged(tmp_path, problem, honest(problem).replace(tied, untied))
    assert failures(rows)


def test_a_changed_state_keeps_what_is_one_and_where_it_lies() -> None:
    memory, alone = torch.arange(12.0), torch.ones(2)
    a, b = memory[:8].view(2, 4), memory[4:]
    state = {"a": a, "again": a, "b": b, "alone": alone}
    assert first_names(state) == {"a": "a", "again": "a", "b": "b", "alone": "alone"}
    for made in (each(state, lambda _, t: t.double()), Doubles(3).exact(state)):
        assert made["a"] is made["again"]
        made["a"][1, 0] = 99.0
        assert float(made["b"][0]) == 99.0
        assert float(memory[4]) == 4.0
    moved = Doubles(3).moved(state, 1e-3, 0)
    assert torch.equal(moved["a"][1], moved["b"][:4])
    kept = each(state, lambda _, t: t)
    assert all(kept[name] is t for name, t in state.items())


class Shared(nn.Module):
    """A module under two names, whose parameters have others elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)
        self.two.weight = self.one.weight
        self.three, self.scale = self.one, self.one.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.three(self.two(self.one(x))) * self.scale
        return y


def test_each_place_is_replaced_once_and_put_back() -> None:
    model = Shared()
    names = [*tied_tensors.slots(model)]
    assert sorted(names) == sorted(["scale", "one.weight", "one.bias", "two.weight", "two.bias"])
    state = tied_tensors.each(model.state_dict(keep_vars=True), lambda _, t: t.detach() * 2)
    given = {name: state[name] for name in names}
    functional_call(model, given, (torch.ones(1, 4),), tie_weights=False)
    assert model.scale is model.one.bias is model.three.bias
    assert model.two.weight is model.one.weight
