"""Graph -> Graph: a piece of a map becomes the map of pieces of its arguments.

    cat([x, relu(x)])   =  where(in x's half, padded x, padded relu(x))
                       ->  where(in x's half, padded x, relu(padded x))
    relu(x)[:, :8]      ->  relu(x[:, :8])

Memory is read in pieces, but what a kernel computes is not; so a map would be stored for its pieces
alone. Elements that a pad adds are chosen around the map, unless nobody looks at them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from types import MappingProxyType

import torch

from fusewright.ir.builder import (
    TensorExpr,
    all_true,
    constant,
    expand,
    flip,
    narrow,
    pad,
    permute,
    reduce,
    reshape,
    roll,
    where,
)
from fusewright.ir.graph import (
    Graph,
    Node,
    base,
    broadcast,
    node,
    numel,
    readers,
    rebuild,
    toposort,
)
from fusewright.ir.specs import ViewFill, spec_of
from fusewright.ir.strided_view import as_ints, pad_sides, strided_view
from fusewright.targets.target import Target


@dataclass(frozen=True)
class RecomputePrice:
    """saved: operations for each byte that need not go to memory and back.  hidden: those that hide
    behind each byte of a result.  steps: whether pieces may skip elements."""

    saved: float
    hidden: float
    steps: bool


# An H200 has 7 operations in the time of a byte. On a CPU, 22 more for each element of 8 MiB
# (gelu in a cat) took 0.7 ms, and a pool of a sum of two tensors 6.1 ms instead of 3.8
# [m: pointwise-0027, pointwise-0032, pointwise-0034].
PRICES = {
    "cuda": RecomputePrice(6.0, 1.5, steps=True),
    "cpp": RecomputePrice(1.6, 0.0, steps=False),
}
SMALL = 8  # a source may be computed by another kernel if it is so much smaller
MOST_SOURCES = 6  # of a piece, since a kernel has so many pointers
ROUNDS = 64
MOST_SHORT = 512  # of a row whose reduction is computed beside a piece of it


def through(graph: Graph, target: Target) -> Graph:
    """Pull pieces through the maps that would only be stored for them."""
    for _ in range(ROUNDS):
        known = SinkableMaps(graph, PRICES[target.language])
        if not known.pieces:
            break
        graph = rebuild(graph, lambda n, known=known: known.pieces.get(id(n), n))  # type: ignore[misc]
    return graph


class SinkableMaps:
    """The maps that pieces go through. free: their ids.  pieces: what becomes of each piece."""

    def __init__(self, graph: Graph, price: RecomputePrice) -> None:
        self.graph, self.price = graph, price
        self.nodes = toposort((*graph.inputs, *graph.roots))
        self.roots = {id(r) for r in graph.roots}
        self.readers = readers(self.nodes)
        self.seen = {id(base(n)) for n in self.nodes if n.row.strided_only}
        self.free = {id(n) for n in self.nodes if self._moves(n)} if self.seen else set[int]()
        self._settle()
        tops = (n for n in self.nodes if id(n) in self.free and id(n) in self.seen)
        self.pieces = {id(v): _pulled(v) for m in tops for v in self._cut(m)}
        for f in filter(self._opens, self.nodes):
            self.pieces |= {id(v): _sunk_reduction(v) for v in self._cut(f)}

    def _moves(self, n: Node) -> bool:
        """Whether n is a map that only kernels of ours read."""
        own = n.placement.own_copy is not None or n.has("taps") or n.op == "window_element"
        return n.row.kind == "pointwise" and bool(n.shape) and not own and self.inner(n)

    def inner(self, n: Node) -> bool:
        """Whether only kernels of ours read it."""
        readers = self.readers.get(id(n), [])
        views = [r for r in readers if r.row.kind == "view"]
        computed = all(r.row.computed or r.row.kind == "view" for r in readers)
        return id(n) not in self.roots and computed and all(map(self.inner, views))

    def stored(self, n: Node) -> bool:
        """Whether the node has to lie in memory: somebody reads it there, or pieces of it."""
        return not self.inner(n) or id(n) in self.seen - self.free

    def _settle(self) -> None:
        """Leave out what would read what is not in memory, then what costs more than it saves."""
        wrong = self.free
        while wrong:
            for n in self.nodes:  # arguments first, so once is enough
                if id(n) in self.free and not self._fed(n):
                    self.free.discard(id(n))
            tops = [n for n in self.nodes if id(n) in self.free and id(n) in self.seen]
            wrong = {id(n) for n in tops if not self._pays(n)}
            self.free -= wrong

    def _fed(self, n: Node) -> bool:
        return all(self._near(base(a), n) for a in n.args)

    def _near(self, source: Node, n: Node) -> bool:
        """Whether a kernel that computes `n` may read the source, or compute it, too."""
        if id(source) in self.free or source.row.kind in ("leaf", "library") or not source.shape:
            return True
        small = self._size(source) * SMALL <= self._size(n)
        stored = not self.inner(source) or self._stays(source)
        return (source.row.computed and (small or stored)) or self._reduces(source)

    def _stays(self, source: Node) -> bool:
        """Whether it is stored for reductions, which no tile of its product can hold."""
        reductions = any(r.row.kind == "reduction" for r in self.readers.get(id(source), []))
        return reductions and any(p.row.stored_for_reductions for p in map(base, source.args))

    def _reduces(self, f: Node) -> bool:
        """Whether `f` reduces short rows that lie in memory, and only kernels of ours read it."""
        if (
            f.row.kind != "reduction"
            or f["dims"] != (len(f.args[0].shape) - 1,)
            or not self.inner(f)
        ):
            return False
        (x,), length = f.args, f.args[0].shape[-1]
        short = isinstance(length, int) and length <= MOST_SHORT
        return short and (x.row.kind in ("leaf", "library") or self._stays(x))

    def _opens(self, f: Node) -> bool:
        """Whether it is read in pieces, which are reductions of pieces, and no row is reduced
        twice."""
        if id(f) not in self.seen or not self._reduces(f) or not self._in_pieces(f):
            return False
        return self._once(list(self._cut(f)), f)

    def _in_pieces(self, n: Node) -> bool:
        """Whether all that is read of it are pieces."""
        readers = self.readers.get(id(n), [])
        views = [r for r in readers if r.row.kind == "view"]
        return len(views) == len(readers) and all(
            v.row.strided_only or self._in_pieces(v) for v in views
        )

    def _pays(self, n: Node) -> bool:
        """Whether its pieces lie in memory, and computing them costs less than storing it.

        Pieces that overlap would read several tensors again and again.
        """
        pieces = list(self._cut(n))
        if not all(strided_view(x) for v in pieces for x in (v, *_arguments(v))):
            return False
        whole, sizes = self._size(n), [self._size(v) for v in pieces]
        made = self.expression(n)
        read = {base(a) for m in made for a in m.args if id(base(a)) not in self.free}
        sources = [b for b in read if b.op != "constant"]
        large = [b for b in sources if self._size(b) * SMALL > whole]
        again = len(large) > 1 and sum(min(size, whole) for size in sizes) > whole
        alone = any(self._stays(b) or self._as_small(b, n) for b in sources)
        again |= alone and not self._apart(n, pieces)
        if again or len(sources) > MOST_SOURCES:
            return False
        if not self.price.steps and any(map(_skips, pieces)):
            return False
        work = sum(m.row.cost for m in made) * sum(sizes)
        saved = self.price.saved * whole + self.price.hidden * max(sizes, default=0)
        return work <= 2 * n.dtype.itemsize * saved

    def _as_small(self, f: Node, n: Node) -> bool:
        """Whether `n` is a map of a reduction that has a number for each of its elements."""
        return self._reduces(f) and self._size(f) == self._size(n)

    def _apart(self, n: Node, pieces: list[Node]) -> bool:
        """Whether they are as large as each other, have no element twice, and no fill."""
        return len({v.shape for v in pieces}) == 1 and self._once(pieces, n)

    def _once(self, pieces: list[Node], n: Node) -> bool:
        """Whether slices of `n` may have each element once, and nothing else."""
        return all(map(_plain, pieces)) and sum(map(self._size, pieces)) <= self._size(n)

    def _size(self, n: Node) -> int:
        return self.graph.hint(numel(n.shape))

    def expression(self, n: Node) -> list[Node]:
        """The maps that a piece of `n` computes."""
        found, made = {id(n)}, [n]
        for m in made:
            for b in map(base, m.args):
                if id(b) in self.free and id(b) not in found:
                    found.add(id(b))
                    made.append(b)
        return made

    def _cut(self, n: Node, *, piece: bool = False) -> Iterator[Node]:
        """The outermost views of `n` that are pieces of it."""
        views = [r for r in self.readers.get(id(n), []) if r.row.kind == "view"]
        if piece and len(views) < len(self.readers.get(id(n), [])):
            yield n
        yield from chain(
            *(self._cut(v, piece=piece or v.row.strided_only) for v in dict.fromkeys(views))
        )


def _pulled(v: Node) -> Node:
    """A piece of a map, as the map of pieces."""
    n, args = base(v), _arguments(v)
    shape = broadcast([a.shape for a in args])
    made = TensorExpr(node(n.op, args, shape=shape, dtype=n.dtype, order=(), **dict(n.attributes)))
    exists = _existing(v)
    found, guarded = strided_view(v), strided_view(exists)
    assert found is not None, "who wants this has looked"
    assert guarded is not None, "it is the same part"
    if _filled(v) and not all(g.wrap for g in guarded[1].guards):
        made = where(TensorExpr(exists), made, constant(found[1].fill, n.dtype))  # type: ignore[arg-type]
    return expand(made, v.shape).node


def _sunk_reduction(v: Node) -> Node:
    """A piece of a reduction over the last dimension, as the reduction of a piece."""
    f = base(v)
    (x,) = f.args
    return reshape(reduce(f.op, _rows(v, TensorExpr(x)), (-1,), dtype=f.dtype), v.shape).node


def _rows(v: Node, x: TensorExpr) -> TensorExpr:
    """The rows of `x` whose reductions a piece has."""
    if v.row.kind != "view":
        return x
    below = _rows(v.args[0], x)
    return _narrowed(v, below, list(range(len(below.shape)))) if v.op == "narrow" else below


def _plain(v: Node) -> bool:
    """Whether a piece comes from slices, and dimensions of one element behind all others."""
    if v.row.kind != "view":
        return True
    (x,) = v.args
    behind = v.op == "reshape" and v.shape == (*x.shape, 1)
    return (behind or v.op == "narrow") and _plain(x)


def _skips(v: Node) -> bool:
    """Whether a piece leaves out elements between others."""
    return v.row.kind == "view" and ((v.op == "narrow" and v["step"] != 1) or _skips(v.args[0]))


def _filled(v: Node) -> bool:
    """Whether elements of a piece are none of the map's, and somebody looks at them."""
    fills = v.row.fills and not (v.op == "pad" and spec_of(v, ViewFill).unobserved)
    return v.row.kind == "view" and (fills or _filled(v.args[0]))


def _existing(v: Node) -> Node:
    """Which elements of a piece are elements of the map."""
    if v.row.kind != "view":
        return all_true(v.shape).node
    (x,) = v.args
    attributes = dict(v.attributes)
    if v.op == "pad":
        attributes["spec"] = replace(spec_of(v, ViewFill), value=False)
    return node(v.op, [_existing(x)], shape=v.shape, dtype=torch.bool, order=(), **attributes)


def _arguments(v: Node) -> list[Node]:
    """What a piece of a map is made of: the pieces of its arguments."""
    return [_below(v, TensorExpr(a)).node for a in base(v).args]


def _below(v: Node, a: TensorExpr) -> TensorExpr:
    """The same views of `a`, which the map takes; a dimension that is repeated stays 1."""
    if v.row.kind != "view":
        return reshape(a, (*(1,) * (len(v.shape) - len(a.shape)), *a.shape))
    x, whole = _below(v.args[0], a), v.args[0].shape
    wide = [d for d, size in enumerate(x.shape) if size != 1]
    if v.op == "reshape":
        return reshape(expand(x, whole), v.shape) if wide else reshape(x, (1,) * len(v.shape))
    change = VIEWS.get(v.op)
    return change(v, x, wide) if change else x


def _narrowed(v: Node, x: TensorExpr, wide: list[int]) -> TensorExpr:
    dim, start, end, step = as_ints(tuple(v[name] for name in ("dim", "start", "end", "step")))
    return narrow(x, dim, start, end, step) if dim in wide else x


def _padded(v: Node, x: TensorExpr, wide: list[int]) -> TensorExpr:
    """Nobody looks at what is added; it is 1, since integers are divided, too."""
    sides = [side if d in wide else (0, 0) for d, side in enumerate(pad_sides(v))]
    return pad(x, sides, 1 if x.dtype is not torch.bool else False, unobserved=True)


def _rolled(v: Node, x: TensorExpr, wide: list[int]) -> TensorExpr:
    by = zip(as_ints(v["dims"]), as_ints(v["shifts"]), strict=True)
    return roll(x, {d: far for d, far in by if d in wide})


# What each view does to an argument; those that only exclude elements do nothing.
VIEWS: Mapping[str, Callable[[Node, TensorExpr, list[int]], TensorExpr]] = MappingProxyType(
    {
        "permute": lambda v, x, _: permute(x, as_ints(v["permutation"])),
        "narrow": _narrowed,
        "pad": _padded,
        "flip": lambda v, x, wide: flip(x, [d for d in as_ints(v["dims"]) if d in wide]),
        "roll": _rolled,
    }
)
