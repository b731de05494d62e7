"""Kernel -> Nest: its axes in order, merged where memory allows, and each tensor's address as text.

    rows (row, r0, r1, …)   x   outer (o)   x   columns (i)

Rows are independent. A kernel with folds reduces over outer x columns; a pure map has rows and
columns only. Axes are ordered as they lie in the memory of the largest tensor, so that columns run
along it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from math import gcd

from fusewright.ir import Batch, Graph, Node, Size, concrete, numel, size_text, times
from fusewright.loops import Dims, Read, axis_strides, strides
from fusewright.plan import Kernel

Strides = dict[int, Size]


@dataclass(frozen=True)
class Access:
    """How one tensor is walked: its element at (row, o, i).

    base: text of the offset of (row, 0, 0).  columns: stride along i, 0 if it does not vary there.
    outer: stride along o.  gather: text of the whole inner offset where o or i is not affine.
    varies: it changes within a row.  alignment: a number that divides the offset of every row.
    """

    leaf: Node
    base: str
    columns: Size
    outer: Size
    gather: str
    varies: bool
    alignment: int


@dataclass(frozen=True)
class Nest:
    """The loops of a kernel in order.

    coordinates: declarations of r0, r1, … that the addresses use.  rows, outer, columns: sizes.
    reads: by (member id, argument).  writes: by member id.
    """

    kernel: Kernel
    rows: Size
    outer: Size
    columns: Size
    coordinates: tuple[str, ...]
    reads: dict[tuple[int, int], Access]
    writes: dict[int, Access]

    def same_place(self, read: Access, write: Access) -> bool:
        """Whether a read and a write touch the same element at every step."""
        first = (read.base, read.columns, read.outer, read.gather)
        return first == (write.base, write.columns, write.outer, write.gather)


@dataclass(frozen=True)
class _Axis:
    """Several axes of the kernel that lie together in every tensor, outermost first."""

    parts: tuple[int, ...]
    size: Size


def nest(kernel: Kernel, graph: Graph) -> Nest:
    """Order and merge the axes of `kernel`."""
    loops = kernel.loops
    walks = _walks(kernel)
    hint: dict[int, int] = {a: graph.hint(s) for a, s in loops.sizes.items()}
    order = _order(kernel, walks, hint, graph)
    rows = _merge([a for a in order if a in loops.rows], walks, loops.sizes)
    inner_order = loops.positions or [a for a in order if a in loops.inner]
    inner = _merge(inner_order, walks, loops.sizes)
    if not loops.inner and rows and not kernel.folds:
        inner, rows = [rows[-1]], rows[:-1]
    outer, columns = inner[:-1], inner[-1:]
    build = _Addresses(rows, outer, columns, graph)
    reads = {key: build.access(leaf, walk) for key, (leaf, walk) in walks.items() if key[1] >= 0}
    writes = {key[0]: build.access(leaf, walk) for key, (leaf, walk) in walks.items() if key[1] < 0}
    return Nest(
        kernel,
        numel(a.size for a in rows),
        numel(a.size for a in outer),
        columns[0].size if columns else 1,
        build.coordinates(),
        reads,
        writes,
    )


def _walks(kernel: Kernel) -> dict[tuple[int, int], tuple[Node, Strides]]:
    """The stride of every axis in every tensor; writes have argument -1."""
    loops = kernel.loops
    walks: dict[tuple[int, int], tuple[Node, Strides]] = {}
    for key, edge in loops.edges.items():
        if isinstance(edge, Read):
            walks[key] = (edge.leaf, _strides(edge.leaf, edge.dims, kernel))
    for n in kernel.outputs:
        walks[id(n), -1] = (n, _strides(n, loops.dims[id(n)], kernel))
    return walks


def _strides(n: Node, dims: Dims, kernel: Kernel) -> Strides:
    return axis_strides(dims, strides(n.shape, n.order), kernel.loops.sizes)


def _order(
    kernel: Kernel,
    walks: dict[tuple[int, int], tuple[Node, Strides]],
    hint: dict[int, int],
    graph: Graph,
) -> list[int]:
    """Axes from the outermost to the innermost, as in the tensor that has most of them."""
    axes = list(kernel.loops.sizes)
    ranked = sorted(walks.items(), key=lambda w: (-_volume(w[1][1], hint), w[0][1] >= 0))
    place: dict[int, tuple[int, int]] = {}
    for rank, (_, (_, walk)) in enumerate(ranked):
        for axis, step in walk.items():
            place.setdefault(axis, (rank, -concrete(step, graph.batch)))
    return sorted(axes, key=lambda a: place.get(a, (len(ranked), a)))


def _volume(walk: Strides, hint: dict[int, int]) -> int:
    return reduce(lambda total, axis: total * hint[axis], walk, 1)


def _merge(
    axes: Sequence[int],
    walks: dict[tuple[int, int], tuple[Node, Strides]],
    sizes: object,
) -> list[_Axis]:
    """Merge neighbours (a, b) where every tensor has stride(a) = stride(b) * size(b)."""
    table: dict[int, Size] = dict(sizes)  # type: ignore[call-overload]
    merged: list[_Axis] = []
    for axis in axes:
        if merged and all(
            _joins(walk, merged[-1].parts[-1], axis, table) for _, walk in walks.values()
        ):
            last = merged[-1]
            merged[-1] = _Axis((*last.parts, axis), times(last.size, table[axis]))
        else:
            merged.append(_Axis((axis,), table[axis]))
    return merged


def _joins(walk: Strides, outer: int, inner: int, sizes: dict[int, Size]) -> bool:
    a, b = walk.get(outer, 0), walk.get(inner, 0)
    if a == 0 or b == 0:
        return a == b
    if isinstance(b, Batch) and isinstance(sizes[inner], Batch):
        return False
    return a == times(b, sizes[inner])


class _Addresses:
    """Prints addresses; remembers which row coordinates they use."""

    def __init__(
        self, rows: list[_Axis], outer: list[_Axis], columns: list[_Axis], graph: Graph
    ) -> None:
        self.rows, self.outer, self.columns = rows, outer, columns
        self.graph = graph
        self.used: set[int] = set()

    def access(self, leaf: Node, walk: Strides) -> Access:
        column = walk.get(self.columns[0].parts[-1], 0) if self.columns else 0
        steps = [walk.get(a.parts[-1], 0) for a in self.outer]
        affine = self._affine(steps)
        varies = column != 0 or any(step != 0 for step in steps)
        gather = "" if affine is not None else self._gather(steps, column)
        rows = [walk.get(a.parts[-1], 0) for a in self.rows]
        alignment = gcd(*(s.multiple if isinstance(s, Batch) else s for s in rows))
        return Access(leaf, self._base(walk), column, affine or 0, gather, varies, alignment)

    def _affine(self, steps: list[Size]) -> Size | None:
        """One stride along o = the outer axes as one number, or None."""
        if not steps:
            return 0
        step = steps[-1]
        for axis, previous in zip(reversed(self.outer[1:]), reversed(steps[:-1]), strict=True):
            step = times(step, axis.size) if step != 0 else 0
            if previous != step:
                return None
        return steps[-1]

    def _gather(self, steps: list[Size], column: Size) -> str:
        coordinates = _digits("o", [a.size for a in self.outer])
        terms = [_term(c, s) for c, s in zip(coordinates, steps, strict=True) if s != 0]
        return _sum([*terms, *([_term("i", column)] if column != 0 else [])])

    def _base(self, walk: Strides) -> str:
        steps = [walk.get(a.parts[-1], 0) for a in self.rows]
        whole = self._whole_row(steps)
        if whole is not None:
            return _sum([_term("row", whole)] if whole != 0 else [])
        terms = []
        for k, step in enumerate(steps):
            if step != 0:
                self.used.add(k)
                terms.append(_term(f"r{k}", step))
        return _sum(terms)

    def _whole_row(self, steps: list[Size]) -> Size | None:
        """The stride per row, when the rows of this tensor lie evenly."""
        if not steps:
            return 0
        step = steps[-1]
        expected: Size = step
        for axis, previous in zip(reversed(self.rows[1:]), reversed(steps[:-1]), strict=True):
            if expected != 0 and isinstance(expected, Batch) and isinstance(axis.size, Batch):
                return None
            expected = times(expected, axis.size) if expected != 0 else 0
            if previous != expected:
                return None
        return step

    def coordinates(self) -> tuple[str, ...]:
        digits = _digits("row", [a.size for a in self.rows])
        return tuple(f"const long r{k} = {digits[k]};" for k in sorted(self.used))


def _digits(name: str, sizes: list[Size]) -> list[str]:
    """The digits of a number written in mixed radix `sizes`, outermost first, as text."""
    result: list[str] = []
    for k, size in enumerate(sizes):
        below = numel(sizes[k + 1 :])
        text = name if below == 1 else f"{name} / {_factor(below)}"
        if k > 0:
            text = f"{text} % {_factor(size)}"
        result.append(text)
    return result


def _factor(size: Size) -> str:
    text = size_text(size)
    return f"({text})" if "*" in text else text


def _term(coordinate: str, step: Size) -> str:
    inner = f"({coordinate})" if " " in coordinate else coordinate
    return inner if step == 1 else f"{inner} * {_factor(step)}"


def _sum(terms: list[str]) -> str:
    return " + ".join(terms) if terms else "0"
