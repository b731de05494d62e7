"""Graph -> Graph: pools whose windows lie inside the image become maps of pieces of it.

    max_pool2d(x, 2)   ->  maximum(maximum(x[::2, ::2], x[::2, 1::2]), ...)

The pieces are views: the kernel that follows reads them where they lie, and nothing is stored in
between. Windows that reach over the edge stay library calls.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from itertools import product as combinations
from math import prod

from fusewright.convolution import each
from fusewright.formula import Value, apply, narrow
from fusewright.ir import Graph, Node, rebuild
from fusewright.product import arguments
from fusewright.target import Target

MOST_PIECES = 27  # 3 x 3 x 3
# name -> its arguments behind the image; those that have to keep their defaults come last
MAX = ("kernel", "stride", "padding", "dilation", "ceil")
AVERAGE = ("kernel", "stride", "padding", "ceil", "counts", "divisor")
POOLS = {
    **{f"aten.max_pool{rank}d": MAX for rank in (1, 2, 3)},
    **{f"aten.avg_pool{rank}d": AVERAGE for rank in (1, 2, 3)},
}


@dataclass(frozen=True)
class _Pool:
    """One pool: the image, and the sizes and steps of its windows along the last dimensions."""

    image: Value
    kernel: tuple[int, ...]
    stride: tuple[int, ...]


def windows(graph: Graph, target: Target) -> Graph:
    """Rewrite the library pools for which maps are faster: on a GPU."""

    def change(n: Node) -> Node:
        pool = _pool(n) if n.op == "library" and n["name"] in POOLS else None
        return n if pool is None else _written(pool, n)

    return rebuild(graph, change) if target.language == "cuda" else graph


def _pool(n: Node) -> _Pool | None:
    """The pool that a library node computes, if all of its windows lie inside."""
    found = arguments(n)
    if found is None or found[1] or n.order or n.args[0].order:
        return None
    image, *rest = found[0]
    given = dict(zip(POOLS[str(n["name"])], rest, strict=False))
    rank = int(str(n["name"])[-2])
    kernel = each(given["kernel"], rank)
    stride = each(given.get("stride") or kernel, rank)
    plain = not any(each(given.get("padding", 0), rank)) and not given.get("divisor")
    plain = plain and set(each(given.get("dilation", 1), rank)) == {1}
    sizes = (*image.shape[-rank:], *n.shape[-rank:])
    if not plain or not all(isinstance(s, int) for s in sizes) or prod(kernel) > MOST_PIECES:
        return None
    last = ((o - 1) * s + k for o, s, k in zip(sizes[rank:], stride, kernel, strict=True))
    inside = all(end <= size for end, size in zip(last, sizes[:rank], strict=True))
    return _Pool(Value(image), kernel, stride) if inside else None


def _written(pool: _Pool, n: Node) -> Node:
    pieces = list(_pieces(pool, n))
    if "max" in str(n["name"]):
        return reduce(lambda a, b: apply("maximum", a, b), pieces).node
    return (reduce(lambda a, b: a + b, pieces) / float(len(pieces))).node


def _pieces(pool: _Pool, n: Node) -> Iterator[Value]:
    """For each place in the window, what all windows have there."""
    rank = len(pool.kernel)
    for place in combinations(*map(range, pool.kernel)):
        piece = pool.image
        for d, (start, step) in enumerate(zip(place, pool.stride, strict=True)):
            dim = len(n.shape) - rank + d
            size = n.shape[dim]
            assert isinstance(size, int)
            piece = narrow(piece, dim, start, start + (size - 1) * step + 1, step)
        yield piece
