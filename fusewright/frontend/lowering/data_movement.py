"""Calls that only move elements -> maps that read them where they lie.

    cat([a, b])   ->  where(in a's half, a padded, b padded)
    pad, flip, roll  ->  a copy of the padded or turned tensor, or no copy where a kernel reads it

Each function takes the arguments of an ATen call, tensors as Values, and returns None where the
call has to stay: a size known only at run time, many pieces, a mode without a map.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product as combinations
from types import MappingProxyType
from typing import Any

import torch

from fusewright.ir.builder import (
    TensorExpr,
    all_true,
    cast,
    copy,
    expand,
    flip,
    narrow,
    pad,
    reshape,
    roll,
    triangle,
    where,
)
from fusewright.ir.graph import Shape, numel, times

MOST_PIECES = 4  # each element looks through all of them,
MOST_OF_ROWS = 8  # or, on a GPU, each row, where rows are whole
LEAST_INNER = 16  # elements that lie together; a row of fewer leaves most threads idle
# A view, and where its first element stands in the whole.
Piece = tuple[TensorExpr, tuple[int, ...]]
Take = Callable[[TensorExpr, int], TensorExpr]  # a piece along one dimension
Span = tuple[int, Take]  # where a piece begins along one dimension, and which
Ends = Callable[[int, int, int], tuple[Take, Take]]  # size, low, high -> what stands at both sides


def concat_as_select(
    pieces: Sequence[Piece], shape: Shape, dtype: torch.dtype, most: int = MOST_PIECES
) -> TensorExpr | None:
    """One tensor of pieces that cover it; None if they are too many or too narrow."""
    cut = max(
        (d for view, _ in pieces for d, s in enumerate(shape) if view.shape[d] != s), default=0
    )
    behind = numel(shape[cut + 1 :])
    inner = numel(shape[cut:]) if behind == 1 else behind
    if len(pieces) > (MOST_PIECES if behind == 1 else most) or inner in range(LEAST_INNER):
        return None
    *others, final = pieces
    result = cast(_placed(final, shape, unobserved=True), dtype)
    for view, starts in reversed(others):
        inside = _placed((all_true(view.shape), starts), shape)
        result = where(inside, cast(_placed((view, starts), shape, unobserved=True), dtype), result)
    return result


def _placed(piece: Piece, shape: Shape, *, unobserved: bool = False) -> TensorExpr:
    view, starts = piece
    sides = [
        (start, whole - start - size if isinstance(whole, int) and isinstance(size, int) else 0)
        for start, size, whole in zip(starts, view.shape, shape, strict=True)
    ]
    return pad(view, sides, False if view.dtype is torch.bool else 0, unobserved=unobserved)


def _cat(
    tensors: Sequence[TensorExpr], dim: int = 0, *, most: int = MOST_PIECES
) -> TensorExpr | None:
    rank = len(tensors[0].shape)
    dim %= rank
    sizes = [x.shape[dim] for x in tensors]
    lengths = [s for s in sizes if isinstance(s, int)]
    if len(lengths) < len(sizes) or any(len(x.shape) != rank for x in tensors):
        return None
    dtype = tensors[0].dtype
    for x in tensors[1:]:
        dtype = torch.promote_types(dtype, x.dtype)
    starts = [tuple(sum(lengths[:k]) * (d == dim) for d in range(rank)) for k in range(len(sizes))]
    shape = tensors[0].shape
    whole = (*shape[:dim], sum(lengths), *shape[dim + 1 :])
    return concat_as_select(list(zip(tensors, starts, strict=True)), whole, dtype, most)


def _stack(tensors: Sequence[TensorExpr], dim: int = 0) -> TensorExpr | None:
    shape = tensors[0].shape
    dim %= len(shape) + 1
    return _cat([reshape(x, (*shape[:dim], 1, *shape[dim:])) for x in tensors], dim)


def _repeat(x: TensorExpr, counts: Sequence[int]) -> TensorExpr | None:
    """Each dimension over and over: one more dimension before it, which costs no memory."""
    shape = (*(1,) * (len(counts) - len(x.shape)), *x.shape)
    if not all(isinstance(n, int) and n > 0 for n in counts):
        return None
    apart = reshape(x, tuple(size for s in shape for size in (1, s)))
    wide = expand(apart, tuple(size for n, s in zip(counts, shape, strict=True) for size in (n, s)))
    return copy(reshape(wide, tuple(times(s, n) for n, s in zip(counts, shape, strict=True))))


def _spread(x: TensorExpr, spans: Mapping[int, Sequence[Span]], shape: Shape) -> TensorExpr | None:
    """What `spans` say of each dimension, for all of them together."""
    pieces: list[Piece] = []
    for chosen in combinations(*spans.values()):
        view, starts = x, [0] * len(shape)
        for d, (start, take) in zip(spans, chosen, strict=True):
            view, starts[d] = take(view, d), start
        pieces.append((view, tuple(starts)))
    return concat_as_select(pieces, shape, x.dtype)


def _roll(x: TensorExpr, shifts: Any, dims: Any = ()) -> TensorExpr | None:
    by: dict[int, int] = {}  # a dimension may be named twice
    if not x.shape:
        return None
    for d, far in zip(_list(dims), _list(shifts), strict=False):
        by[d % len(x.shape)] = by.get(d % len(x.shape), 0) + far
    sizes = {d: size for d in by if isinstance(size := x.shape[d], int)}
    if not by or len(sizes) < len(by):
        return None
    if isinstance(last := x.shape[-1], int) and last < LEAST_INNER:
        return None
    return copy(roll(x, {d: far for d, size in sizes.items() if (far := by[d] % size)}))


def _pad(
    x: TensorExpr, pads: Sequence[int], mode: str = "constant", value: Any = None
) -> TensorExpr | None:
    last = len(x.shape) - 1
    sides = {last - k: (pads[2 * k], pads[2 * k + 1]) for k in range(len(pads) // 2)}
    sides = {d: side for d, side in sides.items() if any(side)}
    sizes = {d: x.shape[d] for d in sides}
    whole = {d: s for d, s in sizes.items() if isinstance(s, int)}
    if len(whole) < len(sizes):
        return None
    if mode != "constant":
        return _extended(x, sides, whole, EXTENDED[mode])
    for d, (low, high) in sides.items():
        x = narrow(x, d, max(0, -low), whole[d] - max(0, -high))
    positive = {d: (max(0, low), max(0, high)) for d, (low, high) in sides.items()}
    around = [positive.get(d, (0, 0)) for d in range(last + 1)]
    fill = False if x.dtype is torch.bool else 0 if value is None else value
    return copy(pad(x, around, fill))


def _extended(
    x: TensorExpr, sides: Mapping[int, tuple[int, int]], sizes: Mapping[int, int], ends: Ends
) -> TensorExpr | None:
    """A padded tensor whose sides come from itself."""
    if any(side < 0 for pair in sides.values() for side in pair):
        return None
    spans: dict[int, list[Span]] = {}
    shape = list(x.shape)
    for d, (low, high) in sides.items():
        size = sizes[d]
        before, after = ends(size, low, high)
        spans[d] = (
            [(0, before)] * (low > 0) + [(low + size, after)] * (high > 0) + [(low, lambda x, _: x)]
        )
        shape[d] = low + size + high
    return _spread(x, spans, tuple(shape))


def _cut(start: int, end: int) -> Take:
    return lambda x, dim: narrow(x, dim, start, end)


def _mirrored(start: int, end: int) -> Take:
    return lambda x, dim: flip(narrow(x, dim, start, end), [dim])


def _again(place: int, count: int) -> Take:
    """One element, so many times."""

    def take(x: TensorExpr, dim: int) -> TensorExpr:
        one = narrow(x, dim, place, place + 1)
        return expand(one, (*one.shape[:dim], count, *one.shape[dim + 1 :]))

    return take


EXTENDED: Mapping[str, Ends] = MappingProxyType(
    {
        "reflect": lambda n, low, high: (_mirrored(1, low + 1), _mirrored(n - 1 - high, n - 1)),
        "replicate": lambda n, low, high: (_again(0, low), _again(n - 1, high)),
        "circular": lambda n, low, high: (_cut(n - low, n), _cut(0, high)),
    }
)


def _flip(x: TensorExpr, dims: Any) -> TensorExpr | None:
    turned = _list(dims) if x.shape else []  # a number may be flipped, too
    known = all(isinstance(x.shape[d], int) for d in turned)
    return copy(flip(x, turned)) if known else None


def _triangle(side: str) -> Callable[..., TensorExpr | None]:
    return lambda x, diagonal=0: copy(triangle(x, side, diagonal))


def _list(value: Any) -> list[int]:
    return [value] if isinstance(value, int) else list(value)


MOVES: Mapping[str, Callable[..., TensorExpr | None]] = MappingProxyType(
    {
        "aten.cat": _cat,
        "aten.stack": _stack,
        "aten.repeat": _repeat,
        "aten.roll": _roll,
        "aten.pad": _pad,
        "aten.constant_pad_nd": lambda x, pads, value=0: _pad(x, pads, "constant", value),
        "aten.flip": _flip,
        "aten.triu": _triangle("triu"),
        "aten.tril": _triangle("tril"),
    }
)
MOVES_OF_ROWS: Mapping[str, Callable[..., TensorExpr | None]] = MappingProxyType(
    {**MOVES, "aten.cat": partial(_cat, most=MOST_OF_ROWS)}
)
