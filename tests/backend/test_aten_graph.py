"""A functional graph of ATen calls is captured as it is: results, strides, memories are its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from fusewright.backend.compiled_graph import CompiledGraph
from fusewright.compiler.options import Options
from fusewright.frontend.aten_graph import is_plain

aten = torch.ops.aten
WIDE, TALL = torch.randn(6, 4), torch.randn(4, 6).t()


def graph_of(run: Callable[..., Any], *given: torch.Tensor, mode: str = "fake") -> Any:
    return make_fx(run, tracing_mode=mode)(*given)


CASES: dict[str, Callable[..., Any]] = {
    "a map": lambda x, y: [aten.tanh(x) * y],
    "a view of an input": lambda x, y: [aten.t(x), aten.exp(y)],
    "a view of a result": lambda x, y: [aten.t(aten.exp(x) * y), aten.neg(y)],
    "two names for one result": lambda x, y: (lambda z: [z, aten.view(z, [24])])(x * y + 1),
    "an input": lambda x, y: [x, aten.sigmoid(y)],
    "an input twice": lambda x, y: [x, x, aten.sigmoid(y) * x],
    "nothing, and a number": lambda x, y: [None, aten.exp(x) * y, 7],
    "sums": lambda x, y: [aten.sum(x * y, [1]), aten.mean(x + y)],
    "several results": lambda x, y: [*aten.native_layer_norm(x * y, [4], None, None, 1e-5)],
    "a call without kernels": lambda x, y: [*aten.sort(x * y), aten.tanh(y) + x],
    "results that are left out": lambda x, y: [
        t
        for t in aten.convolution_backward(
            aten.unsqueeze(aten.exp(x), 0),
            aten.unsqueeze(aten.tanh(y), 0),
            aten.unsqueeze(aten.mm(x, aten.t(x)), -1),
            [6],
            [1],
            [0],
            [1],
            False,
            [0],
            1,
            [True, False, True],
        )
        if t is not None
    ],
}


@pytest.mark.parametrize("second", [WIDE * 2, TALL], ids=["row-major", "turned"])
@pytest.mark.parametrize("name", CASES)
def test_it_returns_what_the_graph_does(name: str, second: torch.Tensor) -> None:
    graph = graph_of(CASES[name], WIDE, second)
    assert is_plain(graph.graph)
    given = [WIDE.clone(), second.clone()]
    with torch.no_grad():
        expected, compiled = graph(*given), CompiledGraph(graph, Options(target="cpu"), "forward")
        for _ in range(2):
            found = compiled(*given)
            assert type(found) is type(expected)
            for mine, other in zip(found, expected, strict=True):
                if not isinstance(other, torch.Tensor):
                    assert mine == other
                    continue
                torch.testing.assert_close(mine, other)
                assert mine.stride() == other.stride()
            assert shared(found, given) == shared(expected, given)


def shared(results: Any, given: list[torch.Tensor]) -> list[tuple[int, int]]:
    """Pairs of what lies in one memory."""
    tensors = [t for t in (*given, *results) if isinstance(t, torch.Tensor)]
    at = [t.untyped_storage().data_ptr() for t in tensors]
    return [(a, b) for a in range(len(at)) for b in range(a) if at[a] == at[b]]


@pytest.mark.parametrize(
    ("run", "mode", "plain"),
    [
        (lambda x: aten.exp(x) * x, "fake", True),
        (lambda x: aten.exp(x) * x, "symbolic", False),
        (lambda x: aten.add_(aten.exp(x), x), "fake", False),
        (lambda x: x * torch.arange(4.0, dtype=torch.float32), "fake", True),
    ],
    ids=["of fixed sizes", "of free sizes", "changes something", "makes something"],
)
def test_which_graphs_are_plain(run: Callable[..., Any], mode: str, plain: bool) -> None:
    assert is_plain(graph_of(run, WIDE, mode=mode).graph) is plain


def test_a_constant_is_no_plain_graph() -> None:
    held = torch.ones(4)
    graph = make_fx(lambda x: x * held)(WIDE)
    assert any(n.op == "get_attr" for n in graph.graph.nodes)
    assert not is_plain(graph.graph)
