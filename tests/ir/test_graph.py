"""Nodes, graphs, and the checks that name the pass that broke a rule."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fusewright.errors import InternalError
from fusewright.ir.builder import TensorExpr, pad, pointwise, reduce, reshape
from fusewright.ir.graph import (
    BatchSize,
    Graph,
    Node,
    base,
    broadcast,
    check,
    names_in,
    node,
    numel,
    partly_at,
    quotient,
    rebuild,
    show,
    size_at,
    size_text,
    slots_text,
    times,
    toposort,
)
from fusewright.ir.interpreter import interpret, python_text
from fusewright.ir.placement import Inside, OwnCopy, Placement
from fusewright.ir.specs import AttentionSpec, ConvSpec, GemmSpec, ViewFill, spec_of

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


@pytest.mark.parametrize(("a", "b"), [(0.0, -0.0), (1, True), (1.0, 1)])
def test_so_are_those_in_records(a: float, b: float) -> None:
    x = leaf().node
    specs = [ViewFill(((0, 1), (0, 0)), value) for value in (a, b, a)]
    made = [node("pad", [x], shape=(BatchSize(1), 6), dtype=F32, spec=s) for s in specs]
    assert specs[0] == specs[1]
    assert made[0] is not made[1]
    assert made[0] is made[2]


def test_records_of_different_kinds_are_distinct() -> None:
    x = leaf().node
    places = [Placement(own_copy=OwnCopy(what, 1)) for what in ("output", "update", "operand")]
    specs = [*places, Placement(Inside(0, 1, 2)), GemmSpec(1), AttentionSpec(x, 1)]
    made = [node("copy", [x], shape=x.shape, dtype=F32, placement=s) for s in specs]
    assert len(set(map(id, made))) == len(specs)
    assert made[0].placement.own_copy == OwnCopy("output", 1)
    assert made[3].placement.inside == Inside(0, 1, 2)
    assert x.placement == Placement()


def test_a_spec_says_what_pytorch_is_given() -> None:
    spec = ConvSpec(2, (1, 2), ((1, 1), (0, 3)), (1, 1), 1, 0, "float32")
    assert (spec.padding, spec.words()["pads"]) == ("same", (0, 3, 1, 1))
    even = replace(spec, pads=((1, 1), (0, 0)))
    assert (even.padding, even.words()["pads"]) == ((1, 0), (0, 0, 1, 1))
    n = pad(leaf(shape=(2, 3)), [(1, 0), (0, 2)], 1.5, unobserved=True).node
    assert spec_of(n, ViewFill) == ViewFill(((1, 0), (0, 2)), 1.5, unobserved=True)
    with pytest.raises(AssertionError, match="a GemmSpec"):
        spec_of(n, GemmSpec)


def test_row_major_has_no_order() -> None:
    x = leaf().node
    made = node("exp", [x], shape=x.shape, dtype=F32, order=(0, 1))
    assert made.order == ()
    assert made is node("exp", [x], shape=x.shape, dtype=F32)


def test_sizes_with_a_batch() -> None:
    assert times(BatchSize(2), 3) == BatchSize(6)
    assert times(BatchSize(2), 0) == 0
    assert numel((BatchSize(2), 3, 4)) == BatchSize(24)
    assert size_at(BatchSize(3), {"batch": 5}) == 15


def test_sizes_that_are_products_of_free_ones() -> None:
    batch, length = BatchSize(2), BatchSize(3, ("length",))
    both = times(length, batch)
    assert both == BatchSize(6, ("batch", "length")) == times(batch, length)
    assert times(both, length) == BatchSize(18, ("batch", "length", "length"))
    assert quotient(both, length) == batch
    assert quotient(both, both) == 1
    assert quotient(length, batch) is None
    assert quotient(batch, 4) is None
    assert quotient(times(length, length), length) == length
    assert size_at(both, {"batch": 5, "length": 7}) == 210
    assert partly_at(both, {"length": 7}) == BatchSize(42)
    assert partly_at(both, {"batch": 5, "length": 7}) == 210
    assert names_in([4, both, length]) == ("batch", "length")
    assert size_text(both) == "batch * length * 6"
    assert size_text(both, {"batch": "rows"}) == "rows * length * 6"
    assert slots_text(BatchSize(1, ("length", "length"))) == "{length} * {length}"


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
    graph = Graph((x.node,), (reduce("sum", pointwise("exp", x), [-1]).node,))
    assert show(graph) == (
        "%0 = input(position=0): float32[batch, 6]\n"
        "%1 = exp(%0): float32[batch, 6]\n"
        "%2 = sum(%1, dims=(1)): float32[batch]\n"
        "return %2\n"
    )
    padded = pad(leaf(shape=(2, 3)), [(1, 0), (0, 2)], False)
    assert show(Graph((), (padded.node,))).splitlines()[1] == (
        "%1 = pad(%0, spec=ViewFill(pads=((1, 0), (0, 2)), value=False)): float32[3, 5]"
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
    assert python_text(value, lambda size: str(size_at(size, {"batch": 4}))) == text
