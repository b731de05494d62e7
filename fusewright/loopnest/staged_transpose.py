"""Nest -> StagedTranspose: what lies across; what of it a map may bring through shared memory.

Both sides then move whole vectors: the tensors that lie with rows side by side along the rows, all
others along the columns (`run_map_staged` in devicelib/cuda/launch.cuh).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import gcd, prod

from fusewright.frontend.lowering.call import LEAST_BESIDE
from fusewright.ir.graph import FixedSizes, Graph, Size, numel, size_at
from fusewright.loopnest.nest import AffineAccess, Nest

LEAST_SIDE, LEAST_STAGED = 32, 4  # half of a tile; elements of a vector
MOST_STAGED_BYTES = 4 * 2  # tensors of a tile, each a word of 4 bytes for each element


def is_column_major(nest: Nest, graph: Graph) -> bool:
    """Whether neighbours in memory are mostly of different rows."""
    if graph.hint(nest.beside) < LEAST_BESIDE:
        return False
    along = across = 0
    for access in (*nest.reads.values(), *nest.writes.values()):
        if access.varies and access.leaf.op != "constant":
            along += access.leaf.dtype.itemsize * (access.columns == 1)
            across += access.leaf.dtype.itemsize * (access.columns != 1 and access.beside == 1)
    return across >= along > 0 or across > along


@dataclass(frozen=True)
class StagedTranspose:
    """reads: those that are turned, each once, all with the same rows side by side: `side` of them,
    which are `step` apart in the order of rows."""

    reads: tuple[AffineAccess, ...]
    axis: int
    side: Size
    step: Size


def staged_transpose(nest: Nest) -> StagedTranspose | None:
    """How the tensors of a map lie, if it reads rows side by side and writes along columns."""
    moved = [a for a in nest.reads.values() if a.varies and a.leaf.op != "constant"]
    turned = [a for a in moved if a.columns != 1]
    whole = all(a.rows and not a.gather and not a.limits for a in turned)
    along = all(a.columns == 1 for a in nest.writes.values())  # so nothing turned is in place
    small = all(a.leaf.dtype.itemsize <= 4 for a in turned)
    if nest.kernel.reductions or nest.kernel.anchor or not (turned and whole and along and small):
        return None
    sides = [k for k in range(len(nest.axes)) if all(a.rows[k] == 1 for a in turned)]
    apart = tuple({(a.leaf, a.base, a.columns): a for a in turned}.values())
    if not sides or 4 * len(apart) > MOST_STAGED_BYTES:
        return None
    axis = sides[-1]
    return StagedTranspose(apart, axis, nest.axes[axis], numel(nest.axes[axis + 1 :]))


def staged_reads(nest: Nest) -> tuple[AffineAccess, ...]:
    """What a staged map brings through shared memory, slot by slot."""
    found = staged_transpose(nest)
    return found.reads if found else ()


def staged_vector(nest: Nest, graph: Graph) -> tuple[int, FixedSizes]:
    """Elements of a vector on both sides, and numbers that free sizes have to be multiples of for
    that; none where that does not work, or not pay."""
    found = staged_transpose(nest)
    if not found or min(graph.hint(found.side), graph.hint(nest.columns)) < LEAST_SIDE:
        return 0, ()
    widest = {some: _width(nest, found, some) for some in _multiples(graph)}
    vector = max(widest.values())
    able = [some for some, width in widest.items() if width == vector]
    fewest = min(able, key=lambda some: prod(k for _, k in some))
    asked = tuple((name, k) for name, k in fewest if k > 1)
    return (vector, asked) if vector >= LEAST_STAGED else (0, ())


def _multiples(graph: Graph) -> Iterator[FixedSizes]:
    """Powers of two that the free sizes of the example are multiples of."""
    powers = [
        [(name, k) for k in (1, 2, 4, 8, 16) if size % k == 0]
        for name, size in graph.example.items()
    ]
    yield from product(*powers)


def _width(nest: Nest, found: StagedTranspose, multiples: FixedSizes) -> int:
    """The widest vector of at most 16 bytes where free sizes are multiples of these."""
    sizes_at = dict(multiples)
    width = gcd(16, *(size_at(size, sizes_at) for size in (nest.columns, found.side)))
    for access in (a for a in (*nest.reads.values(), *nest.writes.values()) if a.varies):
        width = min(width, 16 // access.leaf.dtype.itemsize)
        sizes = [access.offset, *access.rows]
        if access.columns != 1:
            sizes = [access.columns, *(s for k, s in enumerate(sizes) if k != found.axis + 1)]
        if access.limits or access.gather:
            width = gcd(width, access.alignment)
        else:
            width = gcd(width, *(size_at(size, sizes_at) for size in sizes))
    return width
