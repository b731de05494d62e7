"""A set of nodes -> LoopAxes: the common loop axes over which one kernel can compute all of them.

Every dimension of every node becomes a sequence of axes. Where two nodes meet, their axes are made
equal; where a reshape splits a dimension, the axis is split everywhere. So reshapes, permutes and
expands between the nodes cost nothing, and each tensor's address is a sum of strides times axes.

    [N, C] -> reshape [N, G, C/G]        C is two axes (g, i) from then on, in both shapes
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

from fusewright.ir.graph import (
    Attribute,
    Node,
    Shape,
    Size,
    base,
    quotient,
    size_text,
    times,
    toposort,
)
from fusewright.ir.strided_view import (
    AffineIndex,
    StridedView,
    strided_view,
    strides_in_memory,
)

Dims = tuple[tuple[int, ...], ...]
Strides = dict[int, Size]  # of each axis, in one tensor


class Incompatible(Exception):
    """These nodes have no common loops; they go into different kernels."""


@dataclass(frozen=True)
class Load:
    """One argument that comes from memory: `leaf`, each of its dimensions a sequence of axes.

    part: where a piece of the leaf lies in it, None for all of it.
    """

    leaf: Node
    dims: Dims
    part: StridedView | None = None


@dataclass(frozen=True)
class LoopAxes:
    """The common axes of a kernel.

    sizes: of each axis, by number.  dims: of each member, by node id.  edges: what argument k of
    member m is, by (id(m), k): a member or a Read.  rows: the axes that enumerate independent rows.
    inner: the axes that reductions and scans run over (empty for a kernel without any: then all
    axes are rows).  positions: the inner axes in the order in which argmax and argmin count and
    scans go, () if there are none.  stored_length: how far along the inner axis what is stored
    goes, where that is not all of it.
    """

    sizes: Mapping[int, Size]
    dims: Mapping[int, Dims]
    edges: Mapping[tuple[int, int], Node | Load]
    rows: frozenset[int]
    inner: frozenset[int]
    positions: tuple[int, ...] = ()
    stored_length: int | None = None


def elementwise_args(m: Node) -> range:
    """The arguments of a member that go along its axes; a contraction reads its own as a whole."""
    return range(0 if m.row.kind == "contraction" else len(m.args))


def loops(members: Sequence[Node]) -> LoopAxes:
    """The loops of `members` (arguments first); raises Incompatible when there are none.

    Reads of one tensor are first taken to walk it together (mean(x) and x - mean share their loop);
    where that cannot be (x + transposed x), each read walks on its own. Reductions of pieces go
    along each other, and what is stored may be shorter (a pool of a layer norm).
    """
    pieces = any(m.row.kind == "reduction" and m.args[0].row.strided_only for m in members)
    ways = [(True, False), (False, False), *[(False, True)] * pieces]
    for way in ways[:-1]:
        with suppress(Incompatible):
            return _AxisSolver(members, *way).solve()
    return _AxisSolver(members, *ways[-1]).solve()


class _AxisSolver:
    def __init__(self, members: Sequence[Node], together: bool, short: bool) -> None:
        self.members = members
        self.together, self.short = together, short
        self.leaves: dict[int, Dims] = {}
        self.inside = {id(m) for m in members}
        self.sizes: list[Size] = []
        self.parts: dict[int, tuple[int, ...]] = {}
        self.dims: dict[int, Dims] = {}
        self.edges: dict[tuple[int, int], Node | Load] = {}
        self.reduced: dict[int, tuple[int, ...]] = {}

    def solve(self) -> LoopAxes:
        for m in reversed(self.members):
            dims = self.dims.setdefault(id(m), self._fresh_dims(m.shape))
            for k in elementwise_args(m):
                arg = m.args[k]
                self._reach(m, k, arg, self._argument_dims(m, arg, dims))
        self._meet()
        return self._finish()

    def _meet(self) -> None:
        """Reductions of everything go together where they reduce as many elements."""
        reductions = [
            m for m in self.members if m.row.kind == "reduction" and not any(self.dims[id(m)])
        ]
        for a, b in pairwise(self.reduced[id(m)] for m in reductions):
            if not set(self._resolve(a)) & set(self._resolve(b)):
                self._unify(a, b)
        for a, b in pairwise(self.reduced.values() if self.short else ()):
            self._unify(a, b)

    def _shorten(self) -> int:
        """What has one more axis goes along the reductions' as far as that axis: its size."""
        edges = (e.dims for e in self.edges.values() if isinstance(e, Load))
        every = {self._resolve(d) for dims in (*self.dims.values(), *edges) for d in dims}
        inner = {a for axes in self.reduced.values() for a in self._resolve(axes)}
        rows = {a for m in self.reduced for d in self.dims[m] for a in self._resolve(d)}
        ends = [*({a for d in every for a in d} - rows - inner), *inner]
        sizes = [s for s in (self.sizes[a] for a in ends) if isinstance(s, int)]
        mixed = any(len(d) > 1 and not set(ends).isdisjoint(d) for d in every)
        if mixed or len(ends) != 2 or len(inner) != 1 or len(sizes) != 2 or sizes[0] > sizes[1]:
            raise Incompatible("a value needs more axes than the reductions have")
        self.parts[ends[0]] = (ends[1],)
        return sizes[0]

    # -- axes

    def _fresh(self, size: Size) -> tuple[int, ...]:
        if size == 1:
            return ()
        self.sizes.append(size)
        return (len(self.sizes) - 1,)

    def _fresh_dims(self, shape: Shape) -> Dims:
        return tuple(self._fresh(size) for size in shape)

    def _resolve(self, axes: Iterable[int]) -> tuple[int, ...]:
        found: list[int] = []
        for axis in axes:
            parts = self.parts.get(axis)
            found.extend((axis,) if parts is None else self._resolve(parts))
        return tuple(found)

    def _unify(self, first: Iterable[int], second: Iterable[int]) -> None:
        """Make two sequences of axes, outermost first, the same; split the larger where needed."""
        a, b = list(self._resolve(first)), list(self._resolve(second))
        while a and b:
            x, y = a.pop(0), b.pop(0)
            if x == y:
                continue
            if self.sizes[x] == self.sizes[y]:
                self.parts[max(x, y)] = (min(x, y),)
                a, b = list(self._resolve(a)), list(self._resolve(b))
                continue
            if (rest := quotient(self.sizes[x], self.sizes[y])) is not None:
                a = [*self._split(x, y, rest), *a]
                b = [y, *b]
            elif (rest := quotient(self.sizes[y], self.sizes[x])) is not None:
                b = [*self._split(y, x, rest), *b]
                a = [x, *a]
            else:
                both = " and ".join(size_text(self.sizes[axis]) for axis in (x, y))
                raise Incompatible(f"{both} share no factor")
            a, b = list(self._resolve(a)), list(self._resolve(b))
        if a or b:
            raise Incompatible("different numbers of elements")

    def _split(self, axis: int, outer: int, rest: Size) -> tuple[int, ...]:
        """Write `axis` as (an axis of the size of `outer`, one of the size `rest`)."""
        self.parts[axis] = (*self._fresh(self.sizes[outer]), *self._fresh(rest))
        return self.parts[axis]

    # -- arguments

    def _argument_dims(self, m: Node, arg: Node, dims: Dims) -> Dims:
        if m.row.kind == "reduction":
            return self._reduced_dims(m, arg, dims)
        if m.row.kind == "scan":
            self.reduced[id(m)] = tuple(a for i in _dims(m) for a in dims[i])
        shift = len(dims) - len(arg.shape)
        return tuple(() if size == 1 else dims[i + shift] for i, size in enumerate(arg.shape))

    def _reduced_dims(self, m: Node, arg: Node, dims: Dims) -> Dims:
        kept = iter(dims)
        wanted = _dims(m)
        result = tuple(
            self._fresh(size) if i in wanted else next(kept) for i, size in enumerate(arg.shape)
        )
        self.reduced[id(m)] = tuple(a for i in wanted for a in result[i])
        return result

    def _reach(self, m: Node, k: int, arg: Node, dims: Dims) -> None:
        if id(arg) in self.inside:
            self._same_dims(self.dims.setdefault(id(arg), dims), dims)
            self.edges[id(m), k] = arg
        elif arg.row.kind == "view":
            self._reach_through(m, k, arg, dims)
        else:
            if self.together:
                self._same_dims(self.leaves.setdefault(id(arg), dims), dims)
            self.edges[id(m), k] = Load(arg, dims)

    def _same_dims(self, known: Dims, dims: Dims) -> None:
        for a, b in zip(known, dims, strict=True):
            self._unify(a, b)

    def _reach_through(self, m: Node, k: int, view: Node, dims: Dims) -> None:
        if view.row.strided_only:
            self._read_part(m, k, view, dims)
            return
        (source,) = view.args
        try:
            self._reach(m, k, source, self._through(view, source, dims))
        except Incompatible:
            if any(id(n) in self.inside for n in toposort([source])):
                raise
            self.edges[id(m), k] = Load(view, dims)

    def _read_part(self, m: Node, k: int, view: Node, dims: Dims) -> None:
        """A slice of a tensor is read where it lies; slices of what is computed here are not."""
        if id(base(view)) in self.inside:
            raise Incompatible("a slice of a value is read from memory")
        found = strided_view(view)
        self.edges[id(m), k] = Load(
            *((view, dims) if found is None else (found[0], dims, found[1]))
        )

    def _through(self, view: Node, source: Node, dims: Dims) -> Dims:
        if view.op == "permute":
            permutation = view["permutation"]
            assert isinstance(permutation, tuple)
            place = {int(p): i for i, p in enumerate(permutation)}  # type: ignore[arg-type]
            return tuple(dims[place[i]] for i in range(len(dims)))
        if view.op == "expand":
            return tuple(() if s == 1 else d for s, d in zip(source.shape, dims, strict=True))
        fresh = self._fresh_dims(source.shape)
        self._unify((a for d in fresh for a in d), (a for d in dims for a in d))
        return fresh

    # -- the result

    def _finish(self) -> LoopAxes:
        length = self._shorten() if self.short else None
        dims = {id(m): self._resolved(self.dims[id(m)]) for m in self.members}
        edges = {
            key: replace(edge, dims=self._resolved(edge.dims)) if isinstance(edge, Load) else edge
            for key, edge in self.edges.items()
        }
        for m in self.members:
            flat = [a for d in dims[id(m)] for a in d]
            if len(set(flat)) != len(flat):
                raise Incompatible("a tensor meets its own transpose")
        rows, inner = self._spaces(dims)
        used = rows | inner
        sizes = {a: self.sizes[a] for a in sorted(used)}
        return LoopAxes(sizes, dims, edges, rows, inner, self._positions(), length)

    def _positions(self) -> tuple[int, ...]:
        counted = [m for m in self.members if m.row.result == "index" or m.row.kind == "scan"]
        orders = {self._resolve(self.reduced[id(m)]) for m in counted}
        if len(orders) > 1:
            raise Incompatible("elements of a row are taken in different orders")
        return next(iter(orders), ())

    def _resolved(self, dims: Dims) -> Dims:
        return tuple(self._resolve(d) for d in dims)

    def _spaces(self, dims: Mapping[int, Dims]) -> tuple[frozenset[int], frozenset[int]]:
        everything = {a for d in dims.values() for axes in d for a in axes}
        spaces = []
        for m in self.members:
            if id(m) in self.reduced:
                inner = frozenset(self._resolve(self.reduced[id(m)]))
                axes = frozenset(a for d in dims[id(m)] for a in d)
                spaces.append((axes - inner if m.row.kind == "scan" else axes, inner))
        if not spaces:
            return frozenset(everything), frozenset()
        if any(space != spaces[0] for space in spaces):
            raise Incompatible("reductions over different axes")
        rows, inner = spaces[0]
        if not everything <= rows | inner or rows & inner:
            raise Incompatible("a value needs more axes than the reductions have")
        return rows, inner


def _dims(m: Node) -> tuple[int, ...]:
    """The dimensions of a reduction or a scan."""
    wanted = m["dims"]
    assert isinstance(wanted, tuple)
    return wanted  # type: ignore[return-value]


def axis_strides(dims: Dims, steps: Sequence[Size], sizes: Mapping[int, Size]) -> Strides:
    """The stride of each axis in a tensor with strides `steps`."""
    result: Strides = {}
    for axes, step in zip(dims, steps, strict=True):
        for axis in reversed(axes):
            result[axis] = step
            step = times(step, sizes[axis] or 1)
    return result


# ---- memory --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Axis:
    """Several axes of a kernel that lie together in every tensor, outermost first."""

    parts: tuple[int, ...]
    size: Size


class AxisBound(NamedTuple):
    """The elements of a walk that exist: 0 <= offset + strides . place < size; see `part.Guard`."""

    strides: Strides
    offset: Size
    size: Size
    beyond: bool
    wrap: Size = 0


class TensorWalk(NamedTuple):
    """How a kernel goes through one tensor: from element `offset`, each axis with its stride.

    limits: where there are elements; elsewhere their value is `fill`.
    """

    tensor: Node
    strides: Strides
    offset: Size = 0
    limits: tuple[AxisBound, ...] = ()
    fill: Attribute = None

    @property
    def all_strides(self) -> tuple[Strides, ...]:
        """Of the tensor and of all limits: what axes must agree with to be merged."""
        return (self.strides, *(limit.strides for limit in self.limits))


def read_walks(found: LoopAxes) -> dict[tuple[int, int], TensorWalk]:
    """The tensors that a kernel reads, by (member id, argument)."""
    reads = ((key, edge) for key, edge in found.edges.items() if isinstance(edge, Load))
    return {key: _walk(edge, found.sizes) for key, edge in reads}


def write_walks(found: LoopAxes, outputs: Sequence[Node]) -> dict[int, TensorWalk]:
    """The tensors that a kernel writes, by member id."""
    dims = ((n, found.dims[id(n)]) for n in outputs)
    each = ((n, axis_strides(d, strides_in_memory(n), found.sizes)) for n, d in dims)
    return {id(n): TensorWalk(n, steps) for n, steps in each}


def _walk(edge: Load, sizes: Mapping[int, Size]) -> TensorWalk:
    part = edge.part or StridedView(AffineIndex(0, strides_in_memory(edge.leaf)))
    limits = tuple(
        AxisBound(
            axis_strides(edge.dims, g.form.strides, sizes), g.form.offset, g.size, g.beyond, g.wrap
        )
        for g in part.guards
    )
    steps = axis_strides(edge.dims, part.form.strides, sizes)
    return TensorWalk(edge.leaf, steps, part.form.offset, limits, part.fill)


def merge(axes: Iterable[int], tensors: Iterable[Strides], sizes: Mapping[int, Size]) -> list[Axis]:
    """Merge neighbours (a, b) where every tensor has stride(a) = stride(b) * size(b)."""
    known = list(tensors)
    merged: list[Axis] = []
    for axis in axes:
        if merged and all(_joins(walk, merged[-1].parts[-1], axis, sizes) for walk in known):
            last = merged[-1]
            merged[-1] = Axis((*last.parts, axis), times(last.size, sizes[axis]))
        else:
            merged.append(Axis((axis,), sizes[axis]))
    return merged


def _joins(walk: Strides, outer: int, inner: int, sizes: Mapping[int, Size]) -> bool:
    a, b = walk.get(outer, 0), walk.get(inner, 0)
    if a == 0 or b == 0:
        return a == b
    return a == times(b, sizes[inner])
