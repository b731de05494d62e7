"""A stage of the pipeline on a captured graph: before and after, which must mean the same."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from fusewright.capture import capture, state_of
from fusewright.interpret import interpret
from fusewright.ir import Graph, check
from fusewright.rewrite import rewrite

Inputs = tuple[torch.Tensor, ...]


def staged(
    module: nn.Module, inputs: Inputs, stage: Callable[[Graph], Graph], name: str
) -> tuple[Graph, Graph]:
    """The graph of a module, rewritten, before and after a stage."""
    before, _ = rewrite(capture(module, inputs).graph)
    return before, check(stage(before), name)


@torch.no_grad()
def check_meaning(before: Graph, after: Graph, module: nn.Module, inputs: Inputs) -> None:
    """Both give the same in float64."""
    state = state_of(capture(module, inputs), module)
    wanted = interpret(before, inputs, state, dtype=torch.float64)
    for a, b in zip(interpret(after, inputs, state, dtype=torch.float64), wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12, equal_nan=True)
