"""Kernel with a matmul -> DiagonalBand: the elements of the matmul that its results depend on.

    where(column - row >= 2, f(matmul), 0)   ->   Band(2, columns)

Whatever a tile holds that no result takes need not be multiplied, infinities and NaN included: a
choice takes one of two values and never touches the other one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import or_
from typing import NamedTuple

import torch

from fusewright.fusion.axes import AxisBound, Load, axis_strides, read_walks
from fusewright.fusion.planner import Kernel
from fusewright.ir.graph import Attribute as Value
from fusewright.ir.graph import Node, times
from fusewright.ir.operators import meaning
from fusewright.kernels.gemm.diagonal_band import ALL, FAR, NONE, DiagonalBand
from fusewright.kernels.gemm.match import matrix


class _Mask(NamedTuple):
    """A number inside of a limit and another one outside; without a limit, one everywhere."""

    inside: Value
    outside: Value
    limit: AxisBound | None


def band(kernel: Kernel) -> DiagonalBand:
    """The band of a kernel's product; ALL where nothing is thrown away, or no one knows what."""
    n = kernel.anchor
    if n is None or n.op != "matmul" or kernel.reductions:
        return ALL
    rows, columns = (s if isinstance(s, int) else FAR for s in n.shape[-2:])
    if matrix(n).rows != n.shape[-2]:
        return ALL  # those of several matrices are rows of one
    whole = DiagonalBand(1 - rows, columns - 1)
    found = _Bands(kernel, n, whole).stored() & whole
    return ALL if found == whole else found


class _Bands:
    """The bands of a kernel's members, arguments first."""

    def __init__(self, kernel: Kernel, product: Node, whole: DiagonalBand) -> None:
        self.kernel, self.edges, self.whole = kernel, kernel.loops.edges, whole
        self.limits = {key: walk.limits for key, walk in read_walks(kernel.loops).items()}
        (*_, rows, columns), sizes = kernel.loops.dims[id(product)], kernel.loops.sizes
        self.across = axis_strides((rows, columns), (-1, 1), sizes)  # column - row
        self.of: dict[int, DiagonalBand] = {}
        for m in kernel.members:
            self.of[id(m)] = ALL if m is product else self._band(m)

    def stored(self) -> DiagonalBand:
        """Of all that the kernel stores."""
        return reduce(or_, (self.of[id(n)] for n in self.kernel.outputs))

    def _band(self, m: Node) -> DiagonalBand:
        edges = [self.edges[id(m), k] for k in range(len(m.args))]
        given = [NONE if isinstance(e, Load) else self.of[id(e)] for e in edges]
        if m.op != "where" or given[0] != NONE:
            return reduce(or_, given, NONE)
        holds, fails = self._chosen(m)
        return given[1] & holds | given[2] & fails

    def _chosen(self, m: Node) -> tuple[DiagonalBand, DiagonalBand]:
        """Where a choice may take its first value, and where its second."""
        mask = self._mask(m, 0)
        if mask is None or mask.limit is None:
            return ALL, ALL
        inside, outside = self._sides(mask.limit)
        holds = (inside if mask.inside else NONE) | (outside if mask.outside else NONE)
        return holds, (NONE if mask.inside else inside) | (NONE if mask.outside else outside)

    def _mask(self, m: Node, k: int) -> _Mask | None:
        """What argument k of a member is, if it is made of numbers and one limit."""
        edge = self.edges[id(m), k]
        if isinstance(edge, Load):
            return _read(edge, self.limits[id(m), k])
        given = [self._mask(edge, i) for i in range(len(edge.args))]
        return _tested(edge, [g for g in given if g]) if None not in given else None

    def _sides(self, limit: AxisBound) -> tuple[DiagonalBand, DiagonalBand]:
        """The bands inside and outside of a limit of column - row."""
        steps = {a: s for a, s in limit.strides.items() if s != 0}
        for sign in (1, -1):
            if steps == {a: times(s, sign) for a, s in self.across.items()}:
                return self._within(limit, sign)
        return ALL, ALL

    def _within(self, limit: AxisBound, sign: int) -> tuple[DiagonalBand, DiagonalBand]:
        """The same where 0 <= offset + sign * (column - row) < size."""
        first, size = limit.offset, limit.size
        if not isinstance(first, int) or not isinstance(size, int):
            return ALL, ALL
        ends = sorted((-sign * first, sign * (size - 1 - first)))
        inside = DiagonalBand(*ends)
        if ends[1] >= self.whole.most:
            return inside, DiagonalBand(most=ends[0] - 1)
        return inside, DiagonalBand(least=ends[1] + 1) if ends[0] <= self.whole.least else ALL


def _read(edge: Load, limits: tuple[AxisBound, ...]) -> _Mask | None:
    if edge.leaf.op != "constant" or len(limits) > 1 or any(limit.wrap != 0 for limit in limits):
        return None
    value, fill = edge.leaf["value"], edge.part.fill if edge.part and limits else None
    return _Mask(value, fill, limits[0]) if limits else _Mask(value, value, None)


def _tested(m: Node, given: Sequence[_Mask]) -> _Mask | None:
    """What a member makes of its arguments, if they have one limit at most."""
    limits = [g.limit for g in given if g.limit]
    if not m.row.mask_predicate or (m.op == "cast" and m.dtype is not torch.bool):
        return None
    if any(limit != limits[0] for limit in limits):
        return None
    inside = _tested_number(m, [g.inside for g in given])
    outside = _tested_number(m, [g.outside for g in given])
    return _Mask(inside, outside, limits[0] if limits else None)


def _tested_number(m: Node, values: Sequence[Value]) -> Value:
    if m.op == "copy":
        return values[0]
    if m.op == "cast":
        return bool(values[0])
    pairs = zip(values, m.args, strict=True)
    return meaning(m.op)(*(torch.tensor(v, dtype=a.dtype) for v, a in pairs)).item()  # type: ignore[no-any-return]
