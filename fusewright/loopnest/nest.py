"""Kernel -> Nest: its axes in order, merged where memory allows, and each tensor's address as text.

    rows (row, r0, r1, …)   x   outer (o)   x   columns (i)

Rows are independent. A kernel with reductions reduces over outer x columns; a pure map has rows and
columns only. Axes are ordered as they lie in the memory of the largest tensor, so that columns run
along it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from math import gcd

from fusewright.fusion.axes import (
    Axis,
    AxisBound,
    Strides,
    TensorWalk,
    merge,
    read_walks,
    write_walks,
)
from fusewright.fusion.planner import Kernel
from fusewright.ir.graph import (
    BATCH,
    Attribute,
    FixedSizes,
    Graph,
    Node,
    Size,
    numel,
    partly_at,
    parts_of,
    size_text,
    times,
)
from fusewright.loopnest.sliding_window import SlidingWindow, shift


@dataclass(frozen=True)
class AffineAccess:
    """How one tensor is walked: its element at (row, o, i).

    base: text of the offset of (row, 0, 0).  columns: stride along i, 0 if it does not vary there.
    outer: stride along o.  gather: text of the whole inner offset where o or i is not affine.
    varies: it changes within a row.  alignment: a number that divides the offset of every row, and
    every i where elements begin or cease to exist.  limits: text of the range of i whose elements
    exist, "" for all of them; the others are `fill`.  rows: stride along each axis of the rows.
    apart: whether the next row has other limits.  offset, line: `base` = offset + line.
    wrap: where a row goes round, text of the range of i before that, and how much further the
    others stand; `gather` says the same of each element.
    """

    leaf: Node
    base: str
    columns: Size
    outer: Size
    gather: str
    varies: bool
    alignment: int
    limits: str = ""
    fill: Attribute = None
    rows: tuple[Size, ...] = ()
    apart: bool = False
    offset: Size = 0
    line: str = "0"
    wrap: tuple[str, str] | None = None

    @property
    def beside(self) -> Size:
        """The stride from a row to the next one."""
        return self.rows[-1] if self.rows else 0


@dataclass(frozen=True)
class Nest:
    """The loops of a kernel in order.

    coordinates: declarations of r0, r1, … that the addresses use.  rows, outer, columns: sizes.
    reads: by (member id, argument).  writes: by member id.  axes: sizes of the axes of the rows.
    down: what windows have in common along outer.  heads: where they lie, at each of their places
    along the columns.  free: what the free sizes are called.
    """

    kernel: Kernel
    rows: Size
    outer: Size
    columns: Size
    coordinates: tuple[str, ...]
    reads: dict[tuple[int, int], AffineAccess]
    writes: dict[int, AffineAccess]
    axes: tuple[Size, ...] = ()
    down: SlidingWindow | None = None
    heads: tuple[tuple[AffineAccess, ...], ...] = ()
    free: tuple[str, ...] = (BATCH,)

    @property
    def beside(self) -> Size:
        """How many rows may lie side by side in memory."""
        return self.axes[-1] if self.axes else 1

    @property
    def index(self) -> str:
        """The C++ type in which guards count columns: 32 bits where they leave some free."""
        small = isinstance(self.columns, int) and self.columns < 1 << 29
        return "int" if small else "long"

    def same_place(self, read: AffineAccess, write: AffineAccess) -> bool:
        """Whether a read and a write touch the same element at every step."""
        first = (read.base, read.columns, read.outer, read.gather, read.limits)
        return first == (write.base, write.columns, write.outer, write.gather, "")


def nest(kernel: Kernel, graph: Graph, down: SlidingWindow | None = None) -> Nest:
    """Order and merge the axes of `kernel`. down: what its windows are to go along."""
    read, written = read_walks(kernel.loops), write_walks(kernel.loops, kernel.outputs)
    tensors = [*written.values(), *read.values()]
    behind = kernel.epilogue
    rows, inner = (behind.rows, behind.columns) if behind else _from_memory(kernel, tensors, graph)
    if down:
        rows, inner = [a for a in rows if a not in (down.axis, down.beside)], []
    steps = [each for walk in tensors for each in walk.all_strides]
    merged = [merge(axes, steps, kernel.loops.sizes) for axes in (rows, inner)]
    if down:
        merged[1] = [Axis((a,), kernel.loops.sizes[a]) for a in (down.axis, down.beside)]
    elif not kernel.reductions and not merged[1] and merged[0]:
        merged = [merged[0][:-1], merged[0][-1:]]
    outer, columns = merged[1][:-1], merged[1][-1:]
    build = _AddressPrinter(merged[0], outer, columns, graph)
    reads = {key: build.access(walk) for key, walk in read.items()}
    writes = {key: build.access(walk) for key, walk in written.items()}
    return Nest(
        kernel,
        numel(a.size for a in merged[0]),
        numel(a.size for a in outer),
        columns[0].size if columns else 1,
        build.coordinates(),
        reads,
        writes,
        tuple(axis.size for axis in merged[0]),
        down,
        _heads(down, build.access) if down else (),
        graph.free_names,
    )


def _heads(
    down: SlidingWindow, access: Callable[[TensorWalk], AffineAccess]
) -> tuple[tuple[AffineAccess, ...], ...]:
    places = zip(down.heads, map(range, down.widths), strict=True)
    return tuple(tuple(access(shift(h, down.beside, n)) for n in each) for h, each in places)


def _from_memory(
    kernel: Kernel, tensors: Sequence[TensorWalk], graph: Graph
) -> tuple[Sequence[int], Sequence[int]]:
    """The axes of rows and columns as they lie in memory."""
    loops = kernel.loops
    hint = {a: graph.hint(s) for a, s in loops.sizes.items()}
    order = _order(kernel, tensors, hint, graph)
    inner = loops.positions or [a for a in order if a in loops.inner]
    return [a for a in order if a in loops.rows], inner


def _order(
    kernel: Kernel,
    tensors: Sequence[TensorWalk],
    hint: Mapping[int, int],
    graph: Graph,
) -> list[int]:
    """Axes from the outermost to the innermost, as in the tensor that has most of them; of two that
    have as many, the first counts."""
    axes = list(kernel.loops.sizes)
    ranked = sorted(tensors, key=lambda walk: -_volume(walk.strides, hint))
    place: dict[int, tuple[int, int]] = {}
    for rank, walk in enumerate(ranked):
        for axis, step in walk.strides.items():
            place.setdefault(axis, (rank, -abs(graph.hint(step))))
    return sorted(axes, key=lambda a: place.get(a, (len(ranked), a)))


def _volume(walk: Strides, hint: Mapping[int, int]) -> int:
    return reduce(lambda total, axis: total * hint[axis], walk, 1)


class _AddressPrinter:
    """Prints addresses; remembers which row coordinates they use."""

    def __init__(
        self, rows: list[Axis], outer: list[Axis], columns: list[Axis], graph: Graph
    ) -> None:
        self.rows, self.outer, self.columns = rows, outer, columns
        self.graph = graph
        self.used: set[int] = set()

    def access(self, tensor: TensorWalk) -> AffineAccess:
        walk = tensor.strides
        column, *steps = self._inner(walk)
        affine = self._affine(steps)
        varies = any(s != 0 for each in tensor.all_strides for s in self._inner(each))
        turns = [limit for limit in tensor.limits if limit.wrap != 0]
        inside = [turn for turn in turns if any(s != 0 for s in self._inner(turn.strides))]
        beside = [self._lap(turn) for turn in turns if turn not in inside]
        even = affine is not None and not inside
        laps = [self._lap(turn, inner=True) for turn in inside]
        gather = "" if even else summed([self._gather(steps, column), *laps])
        along = affine is not None and column == 1 and len(inside) == 1
        wraps = along and self._inner(inside[0].strides)[0] != 0
        rows = [walk.get(a.parts[-1], 0) for a in self.rows]
        alignment = _divisor((tensor.offset, *rows, *(turn.wrap for turn in turns)))
        edges = [self._edges(limit) for limit in tensor.limits if limit.beyond]
        limits = " & ".join(self._limit(x) for x in tensor.limits if x.wrap == 0)
        return AffineAccess(
            tensor.tensor,
            _added(self._base(walk, tensor.offset), beside),
            column,
            affine or 0,
            gather,
            varies,
            gcd(alignment, *edges),
            limits,
            tensor.fill,
            tuple(rows),
            any(
                limit.strides.get(a.parts[-1], 0) for limit in tensor.limits for a in self.rows[-1:]
            ),
            tensor.offset,
            _added(self._base(walk, 0), beside),
            (self._limit(inside[0]), size_text(inside[0].wrap)) if wraps else None,
        )

    def _inner(self, walk: Strides) -> list[Size]:
        """The strides along i, 0 if there is none, and along the outer axes."""
        column = walk.get(self.columns[0].parts[-1], 0) if self.columns else 0
        return [column, *(walk.get(a.parts[-1], 0) for a in self.outer)]

    def _edges(self, limit: AxisBound) -> int:
        """A number that divides every i at which a tensor begins or ends."""
        column, *steps = self._inner(limit.strides)
        rows = [limit.strides.get(a.parts[-1], 0) for a in self.rows]
        if column == 0:
            return 0
        return _divisor((limit.offset, limit.size, *rows, *steps)) if column == 1 else 1

    def _limit(self, limit: AxisBound) -> str:
        """Text of the range of i inside one limit, in terms of the row and of o."""
        column, *steps = self._inner(limit.strides)
        place = [self._base(limit.strides, limit.offset), self._gather(steps, 0)]
        first = summed([text for text in place if text != "0"])
        return f"extent_of({first}, {size_text(column)}, {size_text(limit.size)})"

    def _lap(self, turn: AxisBound, *, inner: bool = False) -> str:
        """Text of how much further an element stands where a dimension goes round."""
        column, *steps = self._inner(turn.strides)
        place = [self._base(turn.strides, turn.offset), *[self._gather(steps, column)] * inner]
        return f"wrap({summed(place)}, {size_text(turn.size)}, {size_text(turn.wrap)})"

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
        coordinates = mixed_radix("o", [a.size for a in self.outer])
        terms = [term(c, s) for c, s in zip(coordinates, steps, strict=True) if s != 0]
        return summed([*terms, *([term("i", column)] if column != 0 else [])])

    def _base(self, walk: Strides, offset: Size) -> str:
        first = [size_text(offset)] if offset != 0 else []
        steps = [walk.get(a.parts[-1], 0) for a in self.rows]
        whole = self._whole_row(steps)
        if whole is not None:
            return summed([*first, *([term("row", whole)] if whole != 0 else [])])
        terms = first
        for k, step in enumerate(steps):
            if step != 0:
                self.used.add(k)
                terms.append(term(f"r{k}", step))
        return summed(terms)

    def _whole_row(self, steps: list[Size]) -> Size | None:
        """The stride per row, when the rows of this tensor lie evenly."""
        if not steps:
            return 0
        step = steps[-1]
        expected: Size = step
        for axis, previous in zip(reversed(self.rows[1:]), reversed(steps[:-1]), strict=True):
            expected = times(expected, axis.size) if expected != 0 else 0
            if previous != expected:
                return None
        return step

    def coordinates(self) -> tuple[str, ...]:
        places = mixed_radix("row", [a.size for a in self.rows])
        return tuple(f"const long r{k} = {places[k]};" for k in sorted(self.used))


def _divisor(sizes: Sequence[Size]) -> int:
    return gcd(*(parts_of(size)[0] for size in sizes))


def mixed_radix(name: str, sizes: list[Size]) -> list[str]:
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


def term(coordinate: str, step: Size) -> str:
    inner = f"({coordinate})" if " " in coordinate else coordinate
    return inner if step == 1 else f"{inner} * {_factor(step)}"


def _added(base: str, terms: Sequence[str]) -> str:
    return summed([*([base] if base != "0" or not terms else []), *terms])


def summed(terms: list[str]) -> str:
    return " + ".join(terms) if terms else "0"


def with_fixed(nest: Nest, sizes: FixedSizes) -> Nest:
    """Rows as long as they are at these values of free sizes."""
    known = dict(sizes)
    return replace(nest, outer=partly_at(nest.outer, known), columns=partly_at(nest.columns, known))
