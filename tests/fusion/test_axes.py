"""Common loop axes: what nodes meet, how reshapes split axes, and what has no common loops."""

from __future__ import annotations

import pytest
import torch

from fusewright.fusion.axes import Incompatible, Load, LoopAxes, loops
from fusewright.ir.builder import TensorExpr, permute, pointwise, reduce, reshape
from fusewright.ir.graph import BatchSize, Node, Size, node, toposort

BATCH = BatchSize(1)


def leaf(*shape: Size, position: int = 0) -> TensorExpr:
    return TensorExpr(node("input", position=position, shape=shape, dtype=torch.float32))


def common(*roots: TensorExpr) -> LoopAxes:
    members = [
        n for n in toposort([r.node for r in roots]) if n.row.kind in ("pointwise", "reduction")
    ]
    return loops(members)


def axis_sizes(found: LoopAxes, axes: frozenset[int]) -> list[Size]:
    return [found.sizes[a] for a in sorted(axes)]


def test_a_map_has_rows_only() -> None:
    x = leaf(BATCH, 6)
    found = common(pointwise("exp", x) + 1.0)
    assert sorted(map(str, axis_sizes(found, found.rows))) == sorted(map(str, [BATCH, 6]))
    assert found.inner == frozenset()


def test_a_reduction_runs_over_its_dimensions() -> None:
    x = leaf(BATCH, 6, 4)
    found = common(x - reduce("mean", x, [1, 2], keepdim=True))
    assert axis_sizes(found, found.rows) == [BATCH]
    assert sorted(map(int, axis_sizes(found, found.inner))) == [4, 6]  # type: ignore[arg-type]


def test_a_reshape_splits_an_axis_everywhere() -> None:
    x = leaf(BATCH, 12)
    y = pointwise("exp", x)
    grouped = reshape(y, (BATCH, 3, 4))
    total = reduce("sum", grouped, [2], keepdim=True)
    found = common(reshape(grouped * total, (BATCH, 12)) + 1.0, total)
    assert [found.sizes[a] for a in found.dims[id(y.node)][1]] == [3, 4]
    assert axis_sizes(found, found.inner) == [4]


def test_a_permute_between_members_costs_nothing() -> None:
    x = leaf(3, 4)
    y = pointwise("exp", x)
    z = permute(y, (1, 0)) + 1.0
    found = common(z)
    assert found.dims[id(z.node)] == tuple(reversed(found.dims[id(y.node)]))


def test_a_tensor_and_its_transpose_are_read_apart() -> None:
    x = leaf(4, 4)
    total = x + permute(x, (1, 0))
    found = common(total)
    reads = [e for e in found.edges.values() if isinstance(e, Load)]
    assert [r.leaf for r in reads] == [x.node, x.node]
    assert reads[0].dims == tuple(reversed(reads[1].dims))


def build_transpose() -> list[TensorExpr]:
    y = pointwise("exp", leaf(4, 4))
    return [y + permute(y, (1, 0))]


def build_two_reductions() -> list[TensorExpr]:
    x = leaf(4, 6)
    return [reduce("sum", x, [0]), reduce("sum", x, [1])]


def build_prime_reshape() -> list[TensorExpr]:
    y = pointwise("exp", leaf(4, 9))
    return [pointwise("exp", reshape(y, (6, 6)))]


def build_reduction_of_reduction() -> list[TensorExpr]:
    return [reduce("max", reduce("sum", leaf(4, 6), [1]), [0])]


def build_two_position_orders() -> list[TensorExpr]:
    y = pointwise("exp", leaf(4, 6))
    return [reduce("argmax", y, [0, 1]), reduce("argmax", permute(y, (1, 0)), [0, 1])]


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (build_transpose, "its own transpose"),
        (build_two_reductions, "reductions over different axes"),
        (build_prime_reshape, "share no factor"),
        (build_reduction_of_reduction, "reductions over different axes"),
        (build_two_position_orders, "different orders"),
    ],
)
def test_what_has_no_common_loops(build: object, words: str) -> None:
    with pytest.raises(Incompatible, match=words):
        common(*build())  # type: ignore[operator]


def test_positions_are_counted_in_the_order_of_the_argument() -> None:
    x = leaf(4, 6)
    turned = permute(x, (1, 0))
    position = reduce("argmax", turned, [0, 1])
    found = common(position)
    assert [found.sizes[a] for a in found.positions] == [6, 4]


def test_members_are_reached_once_each() -> None:
    x = leaf(BATCH, 6)
    y = pointwise("exp", x)
    members: list[Node] = [y.node, (y * y).node]
    found = loops(members)
    assert [found.edges[id(members[1]), k] for k in (0, 1)] == [y.node, y.node]
