"""Graph -> Graph: a product with a diagonal matrix multiplies each row, or column, by a number.

    diag(v) @ b   ->   where(others of the column are finite, v_i * b_ij + 0, NaN)
    a @ diag(v)   ->   where(others of the row are finite, a_ij * v_j + 0, NaN)

The zeros of a diagonal matrix make NaN of infinities and NaN, so those are counted along each sum:
an element does not depend on itself, which is multiplied by its number. Sums begin at 0, and so no
result is -0.
"""

from __future__ import annotations

import math

from fusewright.ir.builder import TensorExpr, cast, pointwise, reduce, reshape, where
from fusewright.ir.graph import Graph, Node, rebuild
from fusewright.ir.library_call import TensorRef
from fusewright.rewrite.algebra_rules import NO_ALGEBRA
from fusewright.rewrite.contraction import FORMS, apply_contraction, contraction_of, swap_last_dims
from fusewright.rewrite.simplify import apart, traced

RULE = "diagonal"
DIAGONALS = ("aten.diag", "aten.diag_embed")


def diagonal(graph: Graph, rules: frozenset[str]) -> tuple[Graph, tuple[str, ...]]:
    """The graph without products of diagonal matrices, and the rule once for each."""
    used: list[str] = []

    def change(n: Node) -> Node:
        made = _scaled(n) if n.called in FORMS else None
        used.extend([RULE] * (made is not None))
        return made or n

    if NO_ALGEBRA in rules:
        return graph, ()
    return apart(graph, rebuild(traced(graph), change)), tuple(used)


def _scaled(n: Node) -> Node | None:
    form = contraction_of(n)
    if form is None or n.order or not n.dtype.is_floating_point:
        return None
    if min(len(form.left.shape), len(form.right.shape)) < 2:
        return None
    if v := _vector(form.left):
        other, by, along = TensorExpr(swap_last_dims(form.right)), reshape(v, (*v.shape, 1)), -2
    elif v := _vector(form.right):
        other, by, along = TensorExpr(form.left), reshape(v, (*v.shape[:-1], 1, v.shape[-1])), -1
    else:
        return None
    made = _times(other, by, len(other.shape) + along)
    fits = made.shape == n.shape and {v.dtype, other.dtype} == {n.dtype}
    return apply_contraction(form, made.node) if fits else None


def _times(x: TensorExpr, by: TensorExpr, dim: int) -> TensorExpr:
    """x * by, but NaN where any other element along `dim` is not finite."""
    bad = cast(pointwise("logical_not", pointwise("isfinite", x)), x.dtype)
    count = reduce("sum", bad, [dim], keepdim=True)
    return where(count > bad, math.nan, x * by + 0.0)


def _vector(n: Node) -> TensorExpr | None:
    """The numbers of a diagonal matrix, or of one for each batch."""
    reshaped = False
    while n.row.kind == "view":
        (x,) = n.args
        last = (*range(len(n.shape) - 2), len(n.shape) - 1, len(n.shape) - 2)
        same = n.row.uniform and x.shape[-2:] == n.shape[-2:]
        if not (same or (n.op == "permute" and n["permutation"] == last)):
            return None
        reshaped, n = reshaped or n.op == "reshape", x
    if n.called not in DIAGONALS or (reshaped and len(n.shape) > 2):
        return None
    if (n.call.args, n.call.kwargs) != ((TensorRef(0),), ()):
        return None
    (v,) = n.args
    return TensorExpr(v) if len(n.shape) == len(v.shape) + 1 else None
