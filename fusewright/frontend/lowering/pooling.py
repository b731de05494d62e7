"""Pools -> maps of pieces of the image, or reductions where the windows tile it.

    max_pool2d(x, 2)      ->  maximum(maximum(x[::2, ::2], x[::2, 1::2]), ...)
    avg_pool2d(x, 16)     ->  mean over both 16 of x.view(..., h, 16, w, 16)

The pieces are views: the kernel that follows reads them where they lie, and nothing is stored in
between. Where windows reach over the edge, the pieces are those of the padded image, and an average
counts what is inside by pieces of ones.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product as combinations
from math import prod
from types import MappingProxyType
from typing import Any

from fusewright.common.dtypes import FLOATS
from fusewright.frontend.lowering.call import per_dimension
from fusewright.ir.builder import TensorExpr, cast, expand, narrow, pad, pointwise, reduce, reshape
from fusewright.ir.decompositions import wide
from fusewright.ir.graph import node

MOST_PIECES = 27  # 3 x 3 x 3
MOST_OF_A_TILE = 9  # a larger window that shares nothing with others is a row of its own


@dataclass(frozen=True)
class _PoolGeometry:
    """The windows along the last dimensions of an image; `out` is how many there are."""

    image: TensorExpr
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    sizes: tuple[int, ...]
    out: tuple[int, ...]

    @property
    def around(self) -> tuple[tuple[int, int], ...]:
        """How much of the padding before and behind the image the windows reach."""
        return tuple(
            (p, max(0, (o - 1) * s + (k - 1) * d + 1 - size - p))
            for o, s, k, d, size, p in zip(
                self.out,
                self.stride,
                self.kernel,
                self.dilation,
                self.sizes,
                self.padding,
                strict=True,
            )
        )

    @property
    def tiles(self) -> bool:
        """Whether every element of the image is in one window."""
        whole = tuple(o * k for o, k in zip(self.out, self.kernel, strict=True))
        return whole == self.sizes and self.stride == self.kernel and not any(self.padding)


def _max(rank: int) -> Callable[..., TensorExpr | None]:
    def build(
        x: TensorExpr,
        kernel: Any,
        stride: Any = (),
        padding: Any = 0,
        dilation: Any = 1,
        ceil: Any = 0,
    ) -> TensorExpr | None:
        pool = _pool(x, rank, kernel, stride, padding, dilation, bool(ceil))
        return None if pool is None else _largest(pool)

    return build


def _average(rank: int) -> Callable[..., TensorExpr | None]:
    def build(
        x: TensorExpr,
        kernel: Any,
        stride: Any = (),
        padding: Any = 0,
        ceil: Any = 0,
        counts: Any = 1,
        divisor: int | None = None,
    ) -> TensorExpr | None:
        pool = _pool(x, rank, kernel, stride, padding, 1, bool(ceil))
        return None if pool is None else _mean(pool, bool(counts), divisor)

    return build


def _adaptive(
    rank: int, formula: Callable[[_PoolGeometry], TensorExpr | None]
) -> Callable[[TensorExpr, Any], TensorExpr | None]:
    """Windows of one size, where the image has a multiple of what is wanted."""

    def build(x: TensorExpr, out: Any) -> TensorExpr | None:
        sizes = x.shape[-rank:]
        wanted = [
            s if o is None else o for s, o in zip(sizes, per_dimension(out, rank), strict=True)
        ]
        pairs = [(s, o) for s, o in zip(sizes, wanted, strict=True) if isinstance(s, int)]
        if len(pairs) < rank or any(o < 1 or s % o for s, o in pairs):
            return None
        pool = _pool(x, rank, [s // o for s, o in pairs], (), 0, 1, False)
        return None if pool is None else formula(pool)

    return build


def _pool(
    x: TensorExpr, rank: int, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool
) -> _PoolGeometry | None:
    """None where there is no formula: integers, sizes known at run time, other orders in memory."""
    known = [s for s in x.shape[-rank:] if isinstance(s, int)]
    if len(known) < rank or x.dtype not in FLOATS or x.node.order:
        return None
    k, d, p = (per_dimension(value, rank) for value in (kernel, dilation, padding))
    s = per_dimension(stride, rank) if stride != () and stride != [] else k
    out = []
    for size, width, step, before, gap in zip(known, k, s, p, d, strict=True):
        room = size + 2 * before - gap * (width - 1) - 1
        count = (-(-room // step) if ceil else room // step) + 1
        # The last window of `ceil` has to begin in the image or before it.
        out.append(count - (ceil and (count - 1) * step >= size + before))
    pool = _PoolGeometry(x, k, s, p, d, tuple(known), tuple(out))
    return pool if min(out) > 0 and (pool.tiles or prod(k) <= MOST_PIECES) else None


def _largest(pool: _PoolGeometry) -> TensorExpr:
    if pool.tiles and prod(pool.kernel) > MOST_OF_A_TILE:
        return reduce("max", *_tiled(pool))
    return _joined(pool, -float("inf"), lambda a, b: pointwise("maximum", a, b))


def _mean(pool: _PoolGeometry, counts: bool = True, divisor: int | None = None) -> TensorExpr:
    if pool.tiles and prod(pool.kernel) > MOST_OF_A_TILE:
        tiled, dims = _tiled(pool)
        taken = "sum" if divisor else "mean"
        result = reduce(taken, wide(tiled), dims)
        return cast(result / float(divisor) if divisor else result, pool.image.dtype)
    # Eager's sum begins with 0, so it is 0 where all are -0.
    total = _joined(pool, 0.0, lambda a, b: a + b) + 0.0
    return total / (float(divisor) if divisor else _count(pool, counts))


def _tiled(pool: _PoolGeometry) -> tuple[TensorExpr, list[int]]:
    """The image with a dimension for each window's inside, and those dimensions."""
    rank = len(pool.kernel)
    leading = pool.image.shape[:-rank]
    inside = [size for pair in zip(pool.out, pool.kernel, strict=True) for size in pair]
    dims = [len(leading) + 2 * k + 1 for k in range(rank)]
    return reshape(pool.image, (*leading, *inside)), dims


def _count(pool: _PoolGeometry, counts: bool) -> TensorExpr | float:
    """How many elements each window averages: a factor for each dimension."""
    factors = [_counted(pool, d, counts) for d in range(len(pool.kernel))]
    return functools.reduce(lambda a, b: a * b, factors)


def _counted(pool: _PoolGeometry, d: int, counts: bool) -> TensorExpr | float:
    """The windows' elements along `d`: a number, or at the edge the sum of pieces of ones."""
    low, high = pool.around[d]
    clipped = high > low if counts else high + low > 0
    if not clipped:
        return float(pool.kernel[d])
    rank, size = len(pool.kernel), pool.sizes[d] + 2 * low * counts
    one = TensorExpr(node("constant", shape=(1,) * rank, dtype=pool.image.dtype, value=1.0))
    ones = expand(one, tuple(size if k == d else 1 for k in range(rank)))
    sides = (0, high - low) if counts else (low, high)
    padded = pad(ones, [sides if k == d else (0, 0) for k in range(rank)])
    pieces = (_piece(pool, padded, d, d, place) for place in range(pool.kernel[d]))
    return functools.reduce(lambda a, b: a + b, pieces)


def _joined(
    pool: _PoolGeometry, fill: float, join: Callable[[TensorExpr, TensorExpr], TensorExpr]
) -> TensorExpr:
    """Each window's elements: those of a line, then lines, which other windows have, too."""
    found = list(_pieces(pool, fill))
    for size in reversed(pool.kernel):
        found = [functools.reduce(join, found[k : k + size]) for k in range(0, len(found), size)]
    return found[0]


def _pieces(pool: _PoolGeometry, fill: float) -> Iterator[TensorExpr]:
    """For each place in the window, what all windows have there."""
    rank = len(pool.kernel)
    leading = len(pool.image.shape) - rank
    padded = pad(pool.image, [*[(0, 0)] * leading, *pool.around], fill)
    for places in combinations(*map(range, pool.kernel)):
        piece = padded
        for d, place in enumerate(places):
            piece = _piece(pool, piece, leading + d, d, place)
        yield piece


def _piece(pool: _PoolGeometry, x: TensorExpr, dim: int, d: int, place: int) -> TensorExpr:
    """What all windows have at one place along their dimension `d`, which is `dim` of x."""
    start, step = place * pool.dilation[d], pool.stride[d]
    return narrow(x, dim, start, start + (pool.out[d] - 1) * step + 1, step)


POOLS: Mapping[str, Callable[..., TensorExpr | None]] = MappingProxyType(
    {
        **{f"aten.max_pool{rank}d": _max(rank) for rank in (1, 2, 3)},
        **{f"aten.avg_pool{rank}d": _average(rank) for rank in (1, 2, 3)},
        **{f"aten.adaptive_avg_pool{rank}d": _adaptive(rank, _mean) for rank in (1, 2, 3)},
        **{f"aten.adaptive_max_pool{rank}d": _adaptive(rank, _largest) for rank in (1, 2, 3)},
        **{f"aten.max_pool{rank}d_with_indices": _max(rank) for rank in (1, 2, 3)},
    }
)
