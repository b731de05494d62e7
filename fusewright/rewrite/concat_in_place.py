"""Graph -> Graph: results that a cat joins are written where the joined tensor wants them.

    cat([relu(conv(x)), relu(conv(y))], 1)    a kernel each, and neither a third one nor its copies

The joined tensor becomes a call that computes nothing: its memory is there before its pieces, and
each of those lies in it (`Placement.inside`). Only where
somebody needs the joined tensor in memory, and a piece would be stored anyway; and where one cat
begins as another does, or begins with it (`x = cat([x, layer(x)])`): all of them are read from the
same memory then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fusewright.ir.builder import TensorExpr, copy
from fusewright.ir.graph import (
    Attribute,
    Graph,
    Node,
    base,
    node,
    numel,
    rebuild_from,
    times,
)
from fusewright.ir.library_call import FUNCTIONS, LibraryCall, ListArg, Scalar, TensorRef
from fusewright.ir.placement import Inside, Placement
from fusewright.ir.specs import ViewFill, spec_of
from fusewright.ir.strided_view import pad_sides
from fusewright.rewrite.sink_views import PRICES, SinkableMaps
from fusewright.targets.target import Target

ALIGNED = 16  # bytes that a thread writes at once
# On a CPU, a piece overwrites what it is made of, which is in memory already. Whether new memory
# would pay there is not known: what was measured on a busy machine was noise.
LANGUAGES = ("cuda",)


class Concat(NamedTuple):
    """A cat as a choice between padded tensors. starts: where each piece begins along `dim`."""

    whole: Node
    dim: int
    pieces: tuple[Node, ...]
    starts: tuple[int, ...]


def joint(graph: Graph, target: Target) -> Graph:
    """Let kernels write into joined tensors, one after the other."""
    while target.language in LANGUAGES:
        maps = SinkableMaps(graph, PRICES[target.language])
        found = [j for n in maps.nodes if (j := _joined(n))]
        family = _growing(_opened(found, maps, read=True), maps)
        alone = _opened(found, maps, read=False)
        family = family or [j for j in alone if _worth(j, maps)][:1]
        if not family:
            break
        graph = _written(graph, family, maps)
    return graph


def _opened(found: Sequence[Concat], maps: SinkableMaps, *, read: bool) -> list[Concat]:
    """The same, arguments first: a cat that begins with one that only kernels read begins with
    that one's pieces, and one that nobody else reads is none any more. read: also where somebody
    else does."""
    opened: dict[int, Concat] = {}
    gone = set[int]()
    for j in found:
        first = opened.get(id(j.pieces[0]))
        joins = first and first.dim == j.dim and j.starts[0] == 0 and maps.inner(first.whole)
        if first and joins and (read or not _read(first.whole, maps)):
            gone |= set() if _read(first.whole, maps) else {id(first.whole)}
            pieces, starts = first.pieces + j.pieces[1:], first.starts + j.starts[1:]
            j = Concat(j.whole, j.dim, pieces, starts)
        opened[id(j.whole)] = j
    return [j for j in opened.values() if id(j.whole) not in gone]


def _growing(found: Sequence[Concat], maps: SinkableMaps) -> list[Concat]:
    """A cat behind those that it goes on from, if there are any; only kernels read these."""
    for whole in sorted(found, key=lambda j: -len(j.pieces)):
        others = [j for j in found if j.dim == whole.dim and j is not whole]
        begun = [j for j in others if j.pieces == whole.pieces[: len(j.pieces)]]
        inner = [j for j in begun if maps.inner(j.whole) and _read(j.whole, maps)]
        stored = [p for p in whole.pieces if _writes(whole, p, maps)]
        few = len(whole.pieces) - len(stored) <= 1
        if inner and few and any(_alone(p, maps) for p in stored):
            return [whole, *inner]
    return []


def _read(whole: Node, maps: SinkableMaps) -> bool:
    """Whether somebody reads a cat who is no other cat."""
    readers = maps.readers.get(id(whole), [])
    return any(r.op != "pad" or not spec_of(r, ViewFill).unobserved for r in readers)


def _joined(n: Node) -> Concat | None:
    """The cat that a node is, if it is one and nothing else."""
    placed, rest = list[Node](), n
    if n.order or n.placement.inside:
        return None
    while rest.op == "where":
        inside, view, rest = rest.args
        same = inside.op == view.op == "pad" and pad_sides(inside) == pad_sides(view)
        if not same or base(inside).op != "constant":
            return None
        placed.append(view)
    placed.append(rest)
    if len(placed) < 2 or any(v.op != "pad" or not spec_of(v, ViewFill).unobserved for v in placed):
        return None
    sides = [{d: side for d, side in enumerate(pad_sides(v)) if any(side)} for v in placed]
    dims = {d for each in sides for d in each}
    if len(dims) != 1 or not all(sides):
        return None
    (dim,) = dims
    return Concat(n, dim, tuple(v.args[0] for v in placed), tuple(each[dim][0] for each in sides))


def _worth(found: Concat, maps: SinkableMaps) -> bool:
    """Whether the whole is needed in memory, and a piece of it would be stored for it alone."""
    stored = [p for p in found.pieces if _writes(found, p, maps)]
    copied = len(found.pieces) - len(stored)
    return copied <= 1 and maps.stored(found.whole) and any(_alone(p, maps) for p in stored)


def _alone(piece: Node, maps: SinkableMaps) -> bool:
    """Whether a kernel of its own computes a piece, which holds what it is made of."""
    sources = (base(a) for m in maps.expression(piece) for a in m.args)
    return id(piece) not in maps.free or any(
        b.row.computed and id(b) not in maps.free for b in sources
    )


def _writes(found: Concat, piece: Node, maps: SinkableMaps) -> bool:
    """Whether the kernel of a piece may write it into the whole, where only kernels read it."""
    k, behind = found.pieces.index(piece), numel(found.whole.shape[found.dim + 1 :])
    places = [times(behind, found.starts[k]), times(behind, _along(found.whole, found.dim))]
    even = all(isinstance(p, int) and p * piece.dtype.itemsize % ALIGNED == 0 for p in places)
    own = piece.has("placement") or piece.op == "window_element" or piece.order
    kind = piece.row.kind in ("pointwise", "reduction") and found.pieces.count(piece) == 1
    return even and kind and not own and maps.inner(piece)


def _along(n: Node, dim: int) -> int:
    size = n.shape[dim]
    assert isinstance(size, int), "sizes along which tensors are joined are known"
    return size


def _written(graph: Graph, family: Sequence[Concat], maps: SinkableMaps) -> Graph:
    """The graph with the first of a family as memory, its pieces and the others inside."""
    found = family[0]
    starts = dict(zip(map(id, found.pieces), found.starts, strict=True))
    here = {id(p) for p in found.pieces if _writes(found, p, maps)}
    wholes = {id(j.whole): j for j in family}
    new: dict[int, Node] = {}
    copied: dict[int, Node] = {}

    def piece(p: Node) -> Node:
        made = new[id(p)]
        if id(p) in here:
            return made
        if id(p) not in copied:
            copied[id(p)] = _inside(copy(TensorExpr(made)).node, found, starts[id(p)])
        return copied[id(p)]

    def change(old: Node, n: Node) -> Node:
        made = _inside(n, found, starts[id(old)]) if id(old) in here else n
        if id(old) in wholes:
            made = _call(wholes[id(old)], list(map(piece, wholes[id(old)].pieces)))
            made = made if old is found.whole else _inside(made, found, 0)
        new[id(old)] = made
        return made

    return rebuild_from(graph, change)


def _inside(n: Node, found: Concat, start: int) -> Node:
    """The same, written into the whole."""
    place = Inside(found.dim, start, _along(found.whole, found.dim))
    attributes: dict[str, Attribute] = {**dict(n.attributes), "placement": Placement(place)}
    return node(n.op, n.args, shape=n.shape, dtype=n.dtype, order=(), **attributes)


def _call(found: Concat, pieces: list[Node]) -> Node:
    joined = ListArg(tuple(TensorRef(k) for k in range(len(pieces))))
    call = LibraryCall(
        "aten.cat",
        "default",
        FUNCTIONS["aten.cat"],
        (joined, Scalar(found.dim)),
        new_memory=True,
        memory_of_pieces=True,
        why_library="its pieces are written into it",
    )
    n = found.whole
    return node("library", pieces, shape=n.shape, dtype=n.dtype, call=call)
