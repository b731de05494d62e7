"""Graph -> cheaper Graph: numbers, views and copies, and what outputs must keep."""

from __future__ import annotations

import pytest
import torch

from fusewright.ir.builder import (
    TensorExpr,
    cast,
    constant,
    copy,
    expand,
    permute,
    pointwise,
    reshape,
)
from fusewright.ir.graph import BatchSize, BufferUpdate, Graph, Node, base, check, node, toposort
from fusewright.ir.interpreter import interpret
from fusewright.rewrite.simplify import rewrite


def leaf(*shape: int, position: int = 0) -> TensorExpr:
    return TensorExpr(node("input", position=position, shape=shape, dtype=torch.float32))


def rewritten(x: TensorExpr, *outputs: TensorExpr) -> tuple[Node, ...]:
    graph, _ = rewrite(Graph((x.node,), tuple(o.node for o in outputs)))
    check(graph, "rewrite")
    given = torch.randn(*map(int, x.shape))  # type: ignore[arg-type]
    before = interpret(Graph((x.node,), tuple(o.node for o in outputs)), [given], {})
    for a, b in zip(interpret(graph, [given], {}), before, strict=True):
        torch.testing.assert_close(a, b)
    return graph.outputs


def operators(root: Node) -> list[str]:
    return [n.op for n in toposort([root])]


def test_numbers_are_computed() -> None:
    x = leaf(4)
    (result,) = rewritten(x, x * (constant(2.0, torch.float32) + 3.0))
    assert operators(result) == ["input", "constant", "mul"]
    assert result.args[1]["value"] == 5.0


def test_a_number_known_at_run_time_stays() -> None:
    number = constant(BatchSize(3), torch.float32) + 1.0
    graph, _ = rewrite(Graph((), (number.node,)))
    assert graph.outputs[0].op == "add"


@pytest.mark.parametrize(
    ("build", "wanted"),
    [
        (lambda x: reshape(reshape(x, (6, 4)), (2, 12)), ["input", "reshape", "exp"]),
        (lambda x: reshape(reshape(x, (24,)), (4, 6)), ["input", "exp"]),
        (lambda x: permute(permute(x, (1, 0)), (1, 0)), ["input", "exp"]),
        (lambda x: -(-x), ["input", "exp"]),  # noqa: B002
        (lambda x: cast(copy(x * 2.0), torch.float32), ["input", "constant", "mul", "exp"]),
        (lambda x: copy(permute(x, (1, 0))), ["input", "permute", "copy", "exp"]),
    ],
)
def test_views_and_copies(build: object, wanted: list[str]) -> None:
    x = leaf(4, 6)
    (result,) = rewritten(x, pointwise("exp", build(x)))  # type: ignore[operator]
    assert operators(result) == wanted


def test_an_output_never_becomes_the_input() -> None:
    x = leaf(4, 6)
    times_one, turned = rewritten(x, x * 1.0, reshape(-(-x), (24,)))  # noqa: B002
    assert base(times_one).op == base(turned).op == "copy"


def test_two_outputs_never_become_one() -> None:
    x = leaf(4, 6)
    y = pointwise("relu", x)
    first, second = rewritten(x, y, y * 1.0)
    assert first.op == "relu"
    assert second.op == "copy"
    assert second.args == (first,)


def test_an_output_never_becomes_what_is_stored_in_the_input() -> None:
    x = leaf(4)
    y = x + 1.0
    graph = Graph((x.node,), (y.node,), (BufferUpdate(x.node, copy(y).node),))
    after, _ = rewrite(graph)
    assert after.outputs[0] is not after.updates[0].value


def test_an_order_in_memory_is_kept() -> None:
    x = leaf(2, 3, 4, 5)
    made = node("mul", [x.node, constant(1.0, torch.float32).node], shape=x.shape, dtype=x.dtype,
                order=(0, 2, 3, 1))  # fmt: skip
    (result,) = rewritten(x, TensorExpr(made))
    assert result.order == (0, 2, 3, 1)


def test_rules_hold_for_any_order_in_memory() -> None:
    x = leaf(2, 3, 4, 5)
    power = pointwise("pow", x, 3.0).node
    made = node("pow", power.args, shape=x.shape, dtype=x.dtype, order=(0, 2, 3, 1))
    (result,) = rewritten(x, TensorExpr(made))
    assert operators(result) == ["input", "mul", "mul"]
    assert result.order == (0, 2, 3, 1)


def test_broadcasts_are_not_simplified_away() -> None:
    x = leaf(4, 1)
    (result,) = rewritten(x, expand(x, (4, 3)) * 1.0)
    assert result.shape == (4, 3)
