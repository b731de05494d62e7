"""What the decision record says of where a step comes from."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fusewright.compiler.compilation import make
from fusewright.ir.graph import Graph
from fusewright.ir.origin import calls_of_modules
from fusewright.report.step_origins import origins_line
from fusewright.targets.target import TARGETS


class Model(nn.Module):
    """A library call, and a kernel of five calls in three modules."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 8)])
        self.act, self.norm = nn.Tanh(), nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers[0](x)
        x = self.norm(self.act(x) * 2 + 1)
        return torch.relu(x)


FIRST = Model.forward.__code__.co_firstlineno
WANTED = [
    f"from self.layers[0] (line {FIRST + 1})",
    f"from self.act (line {FIRST + 2}), mul (line {FIRST + 2}), add (line {FIRST + 2}), 2 more",
]


def test_each_step_says_what_asks_for_it() -> None:
    made = make(Model(), [torch.randn(4, 8)], TARGETS["cpu"])
    lines = [line.strip() for line in made.record("model.py").splitlines()]
    assert [line for line in lines if line.startswith("from ")] == WANTED


def test_calls_within_a_module() -> None:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Model()

        def forward(self, x: Tensor) -> Tensor:
            made: Tensor = self.inner(x)
            return made

    made = make(Outer(), [torch.randn(4, 8)], TARGETS["cpu"])
    (kernel,) = made.plan.kernels
    calls = calls_of_modules(made.plan.graph.origins.values())
    line = origins_line([kernel], made.plan.graph, calls)
    assert line.startswith("from self.inner.act (line")
    assert "mul in self.inner (line" in line


def test_nothing_is_said_where_nothing_is_known() -> None:
    made = make(Model(), [torch.randn(4, 8)], TARGETS["cpu"])
    graph = made.plan.graph
    bare = Graph(graph.inputs, graph.outputs)
    assert [origins_line([step], bare, {}) for step in made.plan.steps] == ["", ""]
