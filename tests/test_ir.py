"""Nodes, graphs, and the checks that name the pass that broke a rule."""

from __future__ import annotations

import pytest
import torch

from fusewright.errors import InternalError
from fusewright.ir.builder import TensorExpr, fold, pointwise, reshape
from fusewright.ir.graph import (
    BatchSize,
    Graph,
    Node,
    base,
    broadcast,
    check,
    node,
    numel,
    rebuild,
    show,
    size_at_batch,
    times,
    toposort,
)
from fusewright.ir.interpreter import interpret, python_text

F32 = torch.float32


def leaf(position: int = 0, shape: tuple[int | BatchSize, ...] = (BatchSize(1), 6)) -> TensorExpr:
    return TensorExpr(node("input", position=position, shape=shape, dtype=F32))


def test_equal_means_identical() -> None:
    x = leaf()
    assert (x + 1.0).node is (x + 1.0).node
    assert (x + 1.0).node is not (x + 2.0).node


@pytest.mark.parametrize(("a", "b"), [(0.0, -0.0), (1, True), (1.0, 1)])
def test_numbers_that_python_takes_for_equal_are_distinct(a: float, b: float) -> None:
    made = [node("constant", shape=(), dtype=F32, value=v) for v in (a, b)]
    assert made[0] is not made[1]


def test_row_major_has_no_order() -> None:
    x = leaf().node
    made = node("exp", [x], shape=x.shape, dtype=F32, order=(0, 1))
    assert made.order == ()
    assert made is node("exp", [x], shape=x.shape, dtype=F32)


def test_sizes_with_a_batch() -> None:
    assert times(BatchSize(2), 3) == BatchSize(6)
    assert times(BatchSize(2), 0) == 0
    assert numel((BatchSize(2), 3, 4)) == BatchSize(24)
    assert size_at_batch(BatchSize(3), 5) == 15
    with pytest.raises(InternalError, match="quadratic"):
        times(BatchSize(1), BatchSize(1))


def test_broadcast() -> None:
    assert broadcast([(BatchSize(1), 1, 3), (4, 1)]) == (BatchSize(1), 4, 3)
    assert broadcast([(), ()]) == ()
    with pytest.raises(InternalError, match="do not broadcast"):
        broadcast([(2, 3), (4,)])


@pytest.mark.parametrize(
    ("op", "args", "shape", "dtype", "words"),
    [
        ("add", 2, (3,), F32, "not the broadcast"),
        ("add", 2, (BatchSize(1), 6), torch.float64, "differ from the result's"),
        ("lt", 2, (BatchSize(1), 6), F32, "must be bool"),
        ("reshape", 1, (BatchSize(1), 7), F32, "changes the number of elements"),
    ],
)
def test_check_names_the_pass(
    op: str, args: int, shape: tuple[int | BatchSize, ...], dtype: torch.dtype, words: str
) -> None:
    made = node(op, [leaf().node] * args, shape=shape, dtype=dtype)
    with pytest.raises(InternalError, match=f"After planting: .*{words}"):
        check(Graph((leaf().node,), (made,)), "planting")


def test_the_wrong_number_of_arguments_is_refused_at_once() -> None:
    with pytest.raises(InternalError, match="takes 2 arguments, got 1"):
        node("add", [leaf().node], shape=(6,), dtype=F32)


def test_toposort_has_arguments_first_and_each_node_once() -> None:
    x = leaf()
    y = x * x
    order = toposort([(y + x).node, y.node])
    assert [n.op for n in order] == ["input", "mul", "add"]


def test_rebuild_changes_what_depends_on_a_change() -> None:
    x = leaf()
    graph = Graph((x.node,), ((pointwise("exp", x) + 1.0).node,))

    def to_tanh(n: Node) -> Node:
        return pointwise("tanh", TensorExpr(n.args[0])).node if n.op == "exp" else n

    assert [n.op for n in toposort(rebuild(graph, to_tanh).roots)] == [
        "input",
        "tanh",
        "constant",
        "add",
    ]


def test_base_sees_through_views() -> None:
    x = leaf(shape=(4, 6))
    assert base(reshape(reshape(x, (24,)), (6, 4)).node) is x.node


def test_show() -> None:
    x = leaf()
    graph = Graph((x.node,), (fold("sum", pointwise("exp", x), [-1]).node,))
    assert show(graph) == (
        "%0 = input(position=0): float32[batch, 6]\n"
        "%1 = exp(%0): float32[batch, 6]\n"
        "%2 = sum(%1, dims=(1)): float32[batch]\n"
        "return %2\n"
    )


def test_interpret_in_another_precision() -> None:
    x = leaf(shape=(3,))
    graph = Graph((x.node,), ((x * 0.1).node,))
    (result,) = interpret(graph, [torch.ones(3)], {}, dtype=torch.float64)
    assert result.dtype is torch.float64
    assert result[0].item() == 0.1


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (float("inf"), "float('inf')"), (-float("inf"), "float('-inf')"),
        (float("nan"), "float('nan')"),
        (True, "True"), (1.5, "1.5"), ((), "()"), ((1, 2), "(1, 2,)"), (BatchSize(2), "8"),
        ([1.0], "[1.0]"),
        (torch.float16, "torch.float16"), ("tanh", "'tanh'"), (None, "None"),
    ],
)  # fmt: skip
def test_attributes_as_python_text(value: object, text: str) -> None:
    assert python_text(value, 4) == text
