"""What shares memory with what: outputs, buffers and inputs that change, modules used twice."""

from __future__ import annotations

import copy
import textwrap

import pytest
import torch
from torch import nn

import fusewright
from fusewright.errors import CaptureFailed
from fusewright.frontend.capture import capture
from tests.support.agreement import copied, disagreements
from tests.support.compiled import build, prepare, ready

MODEL = """import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("b", torch.arange(60.0).reshape(5, 12))
        self.register_buffer("c", torch.ones(5, 12))
        self.linear, self.norm = nn.Linear(12, 12), nn.LayerNorm(12)
        self.twice = nn.Sequential(self.linear, self.norm, self.linear)
        self.statistics, self.mean = nn.BatchNorm1d(12), torch.nn.Buffer(torch.zeros(12))
        self.pixels = nn.BatchNorm2d(3)
        self.images = nn.InstanceNorm1d(3, track_running_stats=True)

    def forward(self, x):
{forward}


def get_inputs():
    return [{inputs}]


def get_init_inputs():
    return []
"""
FORWARDS = {
    # what a buffer or an input takes is returned, too
    "taken": "a = x.relu(); self.b.copy_(a); return a",
    "taken, read": "a = x.relu() + self.b; self.b.copy_(a); return a[1:], a.T",
    "taken, a piece": "a = torch.tril(x); self.b.copy_(a); return a[3:]",
    "a piece taken": "a = torch.cat([x, x.relu()]); self.b.copy_(a[3:8]); return a",
    "an input taken": "self.b.copy_(x); return x[1:], self.b[2:], x + 1",
    "taken twice": "a = x.relu(); self.b.copy_(a); self.c.copy_(a); return self.b",
    "taken by the input": "y = x.exp(); x.copy_(y); return y.T, x.T[2:], y",
    # one change reads what another one changes
    "then changed": "self.b.copy_(x); x.add_(1); return x, self.b",
    "exchanged": (
        "t = self.b.clone(); self.b.copy_(self.c); self.c.copy_(t); return x + self.b - self.c"
    ),
    # outputs that are one tensor
    "pieces of a triangle": "a = torch.tril(x); return a[:, ::2], a[1:], a.T[3:5]",
    "pieces of a pad": "a = F.pad(x, (1, 2)); return a[:, 1:], a[:, :1]",
    "pieces of a copy": "a = x[:, ::2].clone(); return a[3:], a[0]",
    "pieces of an equal tensor": "a, b = x.relu(), x.relu(); return a, b, b[1:], b",
    "the same number": "b = x * 1; return b.T, x, b, b[1:]",
    "a row taken": "self.mean.copy_(x[-1]); return self.mean, x[-1], self.mean * 2",
    "a row of a result taken": "a = x.relu(); self.mean.copy_(a[-1]); return self.mean, a[-1], a",
    "a row of an input that changed": "x.copy_(x.cumsum(0)); return x[-1]",
    "two diagonals": "w = self.linear.weight; return x[0].diag() @ w, torch.diag_embed(x[0]) @ w",
    # statistics that a call of PyTorch changes itself
    "statistics, before": "m = self.statistics.running_mean * 2; return self.statistics(x), m",
    "statistics of images": (
        "y = self.images(x.view(5, 3, 4)); return y, self.images.running_mean * 2"
    ),
    # statistics that a kernel changes
    "statistics, returned": (
        "y = self.pixels(x.view(5, 3, 2, 2)); return y, self.pixels.running_mean[1:]"
    ),
    # one module in several places
    "a module twice": "return self.twice(self.norm(x))",
}
NOTHING = {"a diagonal and nothing": ("return torch.diag(x.new_ones(5)) @ x", "torch.randn(5, 0)")}


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[nn.Module, nn.Module]]:
    folder = tmp_path_factory.mktemp("shared")
    every = {name: (text, "torch.randn(5, 12)") for name, text in FORWARDS.items()} | NOTHING
    cases = []
    for k, (text, inputs) in enumerate(every.values()):
        path = folder / f"case{k}.py"
        forward = textwrap.indent(text.replace("; ", "\n"), " " * 8)
        path.write_text(MODEL.format(forward=forward, inputs=inputs), encoding="utf-8")
        cases.append(prepare(path))
    found = {}
    for name, case, module in zip(every, cases, build(cases, folder), strict=True):
        ours = module.ModelNew()
        ours.load_state_dict(case.model.state_dict())
        with torch.no_grad():
            assert ready(copy.deepcopy(ours), copied(case.inputs)), name
        found[name] = ours, copy.deepcopy(case.model)
    return found


@pytest.mark.parametrize("name", FORWARDS)
def test_memory_is_shared_as_in_eager(
    name: str, pairs: dict[str, tuple[nn.Module, nn.Module]]
) -> None:
    ours, theirs = pairs[name]
    for _ in range(2):
        assert not disagreements(ours, theirs, [torch.randn(5, 12)])


def test_a_reduction_of_nothing_is_compiled(pairs: dict[str, tuple[nn.Module, nn.Module]]) -> None:
    ours, _ = pairs["a diagonal and nothing"]
    assert ours(torch.randn(5, 0)).shape == (5, 0)


def test_statistics_that_a_call_changes_are_not_read_before() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.InstanceNorm1d(3, track_running_stats=True)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            assert self.norm.running_mean is not None
            before = self.norm.running_mean * 2
            return self.norm(x), before

    model = Model()
    with pytest.raises(CaptureFailed, match="running statistics of an InstanceNorm"):
        capture(model, [torch.randn(2, 3, 4)])


def test_random_numbers_of_two_calls_are_two() -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return torch.poisson(x), torch.poisson(x)

    graph = capture(Model(), [torch.full((9,), 5.0)]).graph
    assert len(graph.effects) == 2
    assert graph.outputs[0] is not graph.outputs[1]


def test_capture_leaves_a_module_in_several_places_as_it_was() -> None:
    linear = nn.Linear(6, 6)
    model = nn.Sequential(linear, nn.ReLU(), linear)
    weight = linear.weight
    ours = fusewright.optimize(model, torch.randn(4, 6), options={"target": "cpu"})
    assert linear.weight is weight
    assert type(weight) is nn.Parameter
    assert not disagreements(ours, model, [torch.randn(4, 6)])
