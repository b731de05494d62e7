"""A stage of the pipeline on a captured graph: before and after, which must mean the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import torch
from torch import nn

from fusewright.common.call_arguments import like
from fusewright.common.containers import rebuilt, taken
from fusewright.frontend.capture import Captured, capture, state_of
from fusewright.ir.graph import Graph, check, size_at
from fusewright.ir.interpreter import interpret
from fusewright.rewrite.simplify import rewrite

Inputs = tuple[torch.Tensor, ...]


@lru_cache(maxsize=1)  # for a test that asks for the graph, and then for what it means
def captured(module: nn.Module, inputs: Inputs) -> Captured:
    return capture(module, inputs)


def staged(
    module: nn.Module, inputs: Inputs, stage: Callable[[Graph], Graph], name: str
) -> tuple[Graph, Graph]:
    """The graph of a module, rewritten, before and after a stage."""
    before, _ = rewrite(captured(module, inputs).graph)
    return before, check(stage(before), name)


@torch.no_grad()
def check_meaning(before: Graph, after: Graph, module: nn.Module, inputs: Inputs) -> None:
    """Both give the same in float64."""
    state = state_of(captured(module, inputs), module)
    wanted = interpret(before, inputs, state, dtype=torch.float64)
    for a, b in zip(interpret(after, inputs, state, dtype=torch.float64), wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12, equal_nan=True)


def with_batch(inputs: Sequence[object], graph: Graph, batch: int) -> list[object]:
    """The first rows of the arguments that have the free batch size."""
    trees, tensors = taken(inputs)
    cut = []
    for t, leaf in zip(tensors, graph.inputs, strict=True):
        for d, size in enumerate(leaf.shape):
            t = t.narrow(d, 0, size_at(size, dict.fromkeys(graph.example, batch)))
        cut.append(t.clone())
    return like(inputs, rebuilt(trees, cut))
