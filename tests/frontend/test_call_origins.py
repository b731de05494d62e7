"""Where calls of a model come from: module, function, line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fusewright.frontend.capture import capture
from fusewright.ir.graph import Graph, base, node, origin_of, rebuild, toposort
from fusewright.ir.origin import Origin, calls_of_modules

HERE = Path(__file__).read_text(encoding="utf-8").splitlines()


def line_of(text: str) -> int:
    """The number of the one line of this file that begins with a text."""
    (found,) = (k for k, line in enumerate(HERE, 1) if line.strip().startswith(text))
    return found


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(self.linear(x))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer(), Layer()])
        self.again = self.layers[1]
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers[0](x)
        x = self.again(x)
        x = self.norm(x)
        return F.normalize(1 - x)


X = torch.randn(4, 8)


def origins(module: nn.Module, x: Tensor = X) -> list[Origin]:
    """Each origin once, in the model's order."""
    graph = capture(module, [x]).graph
    assert graph.origins.keys() >= {n for n in toposort(graph.roots) if n.row.kind != "leaf"}
    return list(dict.fromkeys(graph.origins.values()))


def test_modules_functions_and_lines() -> None:
    inner, last = line_of("return F.gelu("), line_of("return F.normalize(")
    assert origins(Model().eval()) == [
        Origin("layers.0.linear", "linear", inner),
        Origin("layers.0", "gelu", inner),
        Origin("layers.1.linear", "linear", inner),  # `again` is its second name
        Origin("layers.1", "gelu", inner),
        Origin("norm", "batch_norm", line_of("x = self.norm(x)")),
        Origin("", "sub", last),
        Origin("", "normalize", last),
    ]


def test_what_a_module_calls() -> None:
    calls = calls_of_modules(origins(Model().eval()))
    assert calls["layers.0"] == {"gelu"}
    assert calls[""] == {"sub", "normalize"}


CALLS: list[tuple[Callable[[Tensor], Tensor], str]] = [
    (lambda x: x.T.contiguous(), "contiguous"),
    (lambda x: x[1:].clone(), "clone"),
    (lambda x: F.l1_loss(x, x + 1), "l1_loss"),
    (lambda x: x.half(), "half"),
    (lambda x: (x > 0) & (x < 1), "and"),
    (lambda x: F.cross_entropy(x, x), "cross_entropy"),
    (lambda x: x.relu_() * 2, "mul"),
    (lambda x: torch.einsum("ij,kj->ik", x, x), "einsum"),
]


@pytest.mark.parametrize(("call", "word"), CALLS, ids=[word for _, word in CALLS])
def test_words(call: Callable[[Tensor], Tensor], word: str) -> None:
    class One(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return call(x)

    graph = capture(One(), [X]).graph
    origin = origin_of(graph, base(graph.outputs[0]))
    assert origin is not None
    assert (origin.module, origin.call) == ("", word)


def test_parts_of_a_composite_function() -> None:
    class Attending(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2)

        def forward(self, x: Tensor) -> Tensor:
            made: Tensor = self.attention(x, x, x)[0]
            return made

    found = {o.call for o in origins(Attending().eval(), torch.randn(4, 2, 8))}
    assert {"linear", "softmax", "bmm"} <= found


# ---- what passes do with them --------------------------------------------------------------------


def test_passes_carry_origins() -> None:
    graph = capture(Model().eval(), [X]).graph
    before = dict(graph.origins)

    def change(n):  # type: ignore[no-untyped-def]
        if n.op != "erf":
            return n
        doubled = node("neg", [n], shape=n.shape, dtype=n.dtype)
        return node("neg", [doubled], shape=n.shape, dtype=n.dtype)

    after = rebuild(graph, change)
    erfs = [n for n in toposort(after.roots) if n.op == "erf"]
    assert after.origins.keys() >= {n for n in toposort(after.roots) if n.row.kind != "leaf"}
    assert [after.origins[n].module for n in erfs] == ["layers.0", "layers.1"]
    assert set(after.origins.values()) == set(before.values())


def test_origins_are_no_part_of_a_graph() -> None:
    graph = capture(Model().eval(), [X]).graph
    bare = Graph(graph.inputs, graph.outputs, graph.updates, graph.effects, graph.free)
    assert bare == graph
    assert hash(bare) == hash(graph)
    assert repr(bare) == repr(graph)
