"""Boolean masks on both sides of an assignment, and under sums: shapes never leave."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fusewright
from fusewright.errors import CaptureFailed
from fusewright.frontend.capture import capture, state_of
from fusewright.ir.graph import toposort
from fusewright.ir.interpreter import interpret

X = torch.linspace(-2, 2, 48).reshape(4, 6, 2)
M = X.sum(2) > 0.3


def squares(x: Tensor, m: Tensor) -> Tensor:
    w = torch.zeros_like(x)
    w[m] = 1 - x[m] ** 2
    return w.sum(1)


def grows(x: Tensor, m: Tensor) -> Tensor:
    w = x.clone()
    w[m] += 1
    w[~m] *= x[~m]
    return w


def number(x: Tensor, m: Tensor) -> Tensor:
    w = x * 2
    w[x < 0] = 3.0
    w[m] = x.amax()
    return w


def row(x: Tensor, m: Tensor) -> Tensor:
    w = x * 2
    w[m] = x[0, 0]
    return w


def computed_twice(x: Tensor, m: Tensor) -> Tensor:
    w = x + 0
    w[w < 0] = torch.exp(w[w < 0]) - 1
    return w


def wholes(x: Tensor, m: Tensor) -> Tensor:
    w = (x * 9).int()
    w[m] = w[m] * 3 - 1
    return w


FORWARDS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "squares": squares,
    "grows": grows,
    "number": number,
    "row": row,
    "computed twice": computed_twice,
    "whole numbers": wholes,
    "accumulates": lambda x, m: torch.index_put(x, (m,), x[m] * 2, accumulate=True),
    "adds a number": lambda x, m: torch.index_put(x, (m,), x[0, 0], accumulate=True),
    "scatters": lambda x, m: x.masked_scatter(x > 0, torch.masked_select(x, x > 0) * 2),
    "sum": lambda x, m: x[m].sum() * x,
    "sum of rows": lambda x, m: x[m].sum(0),
    "kept": lambda x, m: x[m].sum(0, keepdim=True) + x,
    "mean": lambda x, m: torch.log1p(x[m].abs()).mean(),
    "half mean": lambda x, m: (x.half() * 900)[m].mean(),
    "mean of rows": lambda x, m: x[m].mean((0, 1)),
    "loss": lambda x, m: F.mse_loss(x[m], (x + 1)[m]),
    "smooth loss": lambda x, m: F.smooth_l1_loss(x[m], x[m] * 2, reduction="sum"),
    "l1": lambda x, m: F.l1_loss(x[m], torch.zeros_like(x)[m]),
    "count": lambda x, m: x[m].sum() / x[m].shape[0],
    "scaled": lambda x, m: (x[m] * x[0, 0]).sum(),
}


class Masked(nn.Module):
    def __init__(self, forwards: list[Callable[[Tensor, Tensor], Tensor]]) -> None:
        super().__init__()
        self.forwards = forwards

    def forward(self, x: Tensor, m: Tensor) -> tuple[Tensor, ...]:
        return tuple(f(x, m) for f in self.forwards)


@pytest.mark.slow
@pytest.mark.parametrize("name", FORWARDS)
def test_a_mask_whose_count_stays_inside_is_a_choice(name: str) -> None:
    module = Masked([FORWARDS[name]])
    made = capture(module, [X, M])
    graph, state = made.graph, state_of(made, module)
    assert not [n for n in toposort(graph.roots) if n.op == "library" and "index" in n.call.name]
    for m in (M, ~M, torch.ones_like(M), torch.zeros_like(M)):
        if name == "count" and not m.any():
            continue  # a division by the number 0
        (found,) = interpret(graph, [X, m], state)
        wanted = FORWARDS[name](X, m)
        assert found.dtype is wanted.dtype
        torch.testing.assert_close(found, wanted, equal_nan=True)


@pytest.mark.slow
@pytest.mark.parametrize("assign", [grows, number, row, computed_twice])
def test_what_is_assigned_to_lies_as_it_did(assign: Callable[[Tensor, Tensor], Tensor]) -> None:
    turned = X.permute(1, 2, 0).contiguous().permute(2, 0, 1)
    (result,) = capture(Masked([assign]), [turned, M]).graph.outputs
    assert assign(turned, M).stride() == (1, 8, 4)
    assert result.order == (1, 2, 0)


@pytest.mark.slow
def test_kernels_choose_by_masks() -> None:
    module = Masked([*FORWARDS.values()])
    fused = fusewright.optimize(module, X, M, options={"target": "cpu"})
    for name, a, b in zip(FORWARDS, fused(X, ~M), module(X, ~M), strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape), name
        torch.testing.assert_close(a, b, msg=name)


@pytest.mark.slow
@pytest.mark.parametrize(
    "forward",
    [
        lambda x, m: x[m],
        lambda x, m: x[m] + x[~m].mean(),
        lambda x, m: x[m].amax(),  # of nothing, an error
        lambda x, m: ((x * 9).int()[m] // (x * 9).int()[m]).sum(),  # by 0, an error
        lambda x, m: torch.cumsum(x[m], 0).sum(),
    ],
)
def test_a_count_that_leaves_is_refused(forward: Callable[[Tensor, Tensor], Tensor]) -> None:
    with pytest.raises(CaptureFailed, match="depends on the data"):
        capture(Masked([forward]), [X, M])
