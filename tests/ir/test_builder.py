"""Graphs as arithmetic, and the composite operators written with it, against torch in float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from fusewright.ir import decompositions
from fusewright.ir.builder import (
    TensorExpr,
    cast,
    constant,
    count,
    permute,
    pointwise,
    reduce,
    where,
)
from fusewright.ir.graph import BatchSize, Graph, check, node
from fusewright.ir.interpreter import interpret

X = torch.randn(4, 6, dtype=torch.float64) * 3


def leaf(*shape: int, dtype: torch.dtype = torch.float64, position: int = 0) -> TensorExpr:
    return TensorExpr(node("input", position=position, shape=shape, dtype=dtype))


def evaluated(build: Callable[[TensorExpr], TensorExpr], given: torch.Tensor) -> torch.Tensor:
    x = leaf(*given.shape, dtype=given.dtype)
    graph = check(Graph((x.node,), (build(x).node,)), "building")
    (result,) = interpret(graph, [given], {})
    return result


ARITHMETIC: list[
    tuple[Callable[[TensorExpr], TensorExpr], Callable[[torch.Tensor], torch.Tensor]]
] = [
    (lambda x: 1.0 - x / 2 + x * x, lambda x: 1.0 - x / 2 + x * x),
    (lambda x: 3.0 / x + 1, lambda x: 3.0 / x + 1),
    (lambda x: where(x > 0.5, x, -1.0), lambda x: torch.where(x > 0.5, x, -1.0)),
    (lambda x: where(x <= 0.5, 2.0, x), lambda x: torch.where(x <= 0.5, 2.0, x)),
    (lambda x: reduce("sum", x, [-1], keepdim=True) * x, lambda x: x.sum(-1, keepdim=True) * x),
    (lambda x: reduce("max", x, [0, 1]), lambda x: x.amax((0, 1))),
    (lambda x: permute(x, (-1, 0)) + 1, lambda x: x.t() + 1),
    (lambda x: cast(x, torch.float32), lambda x: x.float()),
]


@pytest.mark.parametrize(("build", "meant"), ARITHMETIC)
def test_arithmetic(
    build: Callable[[TensorExpr], TensorExpr], meant: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    torch.testing.assert_close(evaluated(build, X), meant(X))


COMPOSITES: list[
    tuple[Callable[[TensorExpr], TensorExpr], Callable[[torch.Tensor], torch.Tensor]]
] = [
    (lambda x: decompositions.softmax(x, [1]), lambda x: F.softmax(x, 1)),
    (lambda x: decompositions.log_softmax(x, [-1]), lambda x: F.log_softmax(x, 1)),
    (lambda x: decompositions.logsumexp(x, [0, 1]), lambda x: x.logsumexp((0, 1))),
    (lambda x: decompositions.variance(x, [1], 1), lambda x: x.var(1)),
    (
        lambda x: decompositions.normalise(x, [1], 1e-3)[0],
        lambda x: F.layer_norm(x, (6,), eps=1e-3),
    ),
    (lambda x: decompositions.clamp(x, None, 0.5), lambda x: x.clamp(max=0.5)),
]


@pytest.mark.parametrize(("build", "meant"), COMPOSITES)
def test_composites(
    build: Callable[[TensorExpr], TensorExpr], meant: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    torch.testing.assert_close(evaluated(build, X), meant(X))


def test_a_row_of_minus_infinity() -> None:
    row = torch.full((1, 3), -float("inf"), dtype=torch.float64)
    assert evaluated(lambda x: decompositions.logsumexp(x, [1]), row).item() == -float("inf")
    assert evaluated(lambda x: decompositions.softmax(x, [1]), row).isnan().all()


def test_numbers_take_the_type_of_the_tensor() -> None:
    made = leaf(3, dtype=torch.int32) * 2
    assert made.dtype is torch.int32
    assert made.node.args[1]["value"] == 2


def test_comparisons_are_bool_and_choices_have_the_type_of_what_is_chosen() -> None:
    x = leaf(3)
    assert (x > 1.0).dtype is torch.bool
    assert pointwise("where", x > 1.0, x, x).dtype is torch.float64


def test_a_cast_to_the_same_type_is_nothing() -> None:
    x = leaf(3)
    assert cast(x, torch.float64) is x
    assert cast(constant(2.5, torch.float64), torch.int64).node["value"] == 2


def test_counts_with_a_batch() -> None:
    x = TensorExpr(node("input", position=0, shape=(BatchSize(1), 4, 5), dtype=torch.float32))
    assert count(x, [0, -1]) == BatchSize(5)
