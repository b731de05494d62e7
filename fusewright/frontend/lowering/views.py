"""ATen calls that move no data, change the type, or fill memory -> our views, casts and copies.

No view computes anything: it is kept as a node, and kernels read through it. A call that moves data
after all (`clone`, another order) is a copy, which the rewrites drop where nobody sees it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from itertools import accumulate

from fusewright.common.dtypes import OF_KERNELS
from fusewright.frontend.lowering.call import AtenCall, Lowered
from fusewright.ir import builder
from fusewright.ir.builder import (
    TensorExpr,
    cast,
    constant,
    copy,
    narrow,
    permute,
    reshape,
    rounded,
)
from fusewright.ir.graph import times

FILLED = {
    **{f"aten.{name}": 0 for name in ("zeros", "zeros_like", "new_zeros", "zero")},
    **{f"aten.{name}": 1 for name in ("ones", "ones_like", "new_ones")},
}
RESHAPES = ["view", "view_as", "reshape", "_unsafe_view", "unsqueeze", "squeeze"]
FILLS = [*FILLED, "aten.full", "aten.full_like", "aten.fill"]
SAME = ["aten.detach"]


def _to_copy(call: AtenCall) -> Lowered:
    x = call.args[0]
    return copy(x) if x.dtype is call.dtype else cast(x, call.dtype, rounds=True)


def _clone(call: AtenCall) -> Lowered:
    return copy(call.args[0])


def _same(call: AtenCall) -> Lowered:
    x: TensorExpr = call.args[0]
    return x


def _reshape(call: AtenCall) -> Lowered:
    return reshape(call.args[0], call.shape)


def _transpose(call: AtenCall) -> Lowered:
    x = call.args[0]
    rank = len(x.shape)
    if rank < 2:
        return _same(call)
    i, j = (1, 0) if call.name == "aten.t" else (call.args[1] % rank, call.args[2] % rank)
    swap = {i: j, j: i}
    return permute(x, [swap.get(d, d) for d in range(rank)])


def _permute(call: AtenCall) -> Lowered:
    return permute(call.args[0], call.args[1]) if call.shape else _same(call)


def _expand(call: AtenCall) -> Lowered:
    x = call.args[0]
    missing = len(call.shape) - len(x.shape)
    return builder.expand(reshape(x, (1,) * missing + x.shape), call.shape)


def _copy_into(call: AtenCall) -> Lowered:
    """(target, source): what the target becomes."""
    target, source = call.args[:2]
    missing = len(target.shape) - len(source.shape)
    spread = builder.expand(reshape(source, (1,) * missing + source.shape), target.shape)
    return copy(cast(spread, target.dtype, rounds=True))


def _slice(call: AtenCall) -> Lowered:
    """x[start:end:step] of one dimension; None where its size or a limit depends on the batch."""
    x: TensorExpr = call.args[0]
    dim = call.get(1, "dim", 0) % len(x.shape)
    size = x.shape[dim]
    given = (call.get(2, "start"), call.get(3, "end"), call.get(4, "step", 1))
    if given[0] in (None, 0) and given[1] in (None, sys.maxsize) and given[2] == 1:
        return x
    if not isinstance(size, int) or not all(v is None or type(v) is int for v in given):
        return None
    start, end, step = slice(*given).indices(size)
    return narrow(x, dim, start, end, step) if end > start else None


def _select(call: AtenCall) -> Lowered:
    x: TensorExpr = call.args[0]
    dim, index = call.args[1] % len(x.shape), call.args[2]
    size = x.shape[dim]
    if not isinstance(size, int) or type(index) is not int:
        return None
    return reshape(narrow(x, dim, index % size, index % size + 1), call.shape)


def _unbind(call: AtenCall) -> Lowered:
    x: TensorExpr = call.args[0]
    dim = call.get(1, "dim", 0) % len(x.shape)
    if not isinstance(x.shape[dim], int):
        return None
    pieces = (narrow(x, dim, k, k + 1) for k in range(len(call.results)))
    return tuple(reshape(p, r.shape) for p, r in zip(pieces, call.results, strict=True))


def _pieces(call: AtenCall) -> Lowered:
    """split and split_with_sizes: neighbours along one dimension."""
    x: TensorExpr = call.args[0]
    dim = call.get(2, "dim", 0) % len(x.shape)
    sizes = [r.shape[dim] for r in call.results]
    if not all(isinstance(s, int) and s > 0 for s in (x.shape[dim], *sizes)):
        return None
    ends = list(accumulate(s for s in sizes if isinstance(s, int)))
    return tuple(
        narrow(x, dim, end - (s if isinstance(s, int) else 0), end)
        for s, end in zip(sizes, ends, strict=True)
    )


def _broadcast(call: AtenCall) -> Lowered:
    rank = len(call.shape)
    wide = [reshape(x, (1,) * (rank - len(x.shape)) + x.shape) for x in call.args[0]]
    return tuple(builder.expand(x, call.shape) for x in wide)


def _channel_shuffle(call: AtenCall) -> Lowered:
    """Channels in groups -> the first of each group, then the second ones, and so on."""
    x, groups = call.args
    batch, channels, *rest = x.shape
    if not isinstance(channels, int):
        return None
    grouped = reshape(x, (batch, groups, channels // groups, *rest))
    turned = permute(grouped, [0, 2, 1, *range(3, len(x.shape) + 1)])
    return copy(reshape(turned, x.shape))


def _pixel_shuffle(call: AtenCall) -> Lowered:
    """[…, C r r, H, W] -> […, C, H r, W r]."""
    x, r = call.args
    *lead, channels, height, width = x.shape
    if not isinstance(channels, int):
        return None
    apart = reshape(x, (*lead, channels // (r * r), r, r, height, width))
    shape = (*lead, channels // (r * r), times(height, r), times(width, r))
    return copy(reshape(_blocks_in_place(apart), shape))


def _pixel_unshuffle(call: AtenCall) -> Lowered:
    """[…, C, H r, W r] -> […, C r r, H, W]."""
    x, r = call.args
    *lead, channels, high, wide = x.shape
    if not (isinstance(high, int) and isinstance(wide, int)):
        return None
    apart = reshape(x, (*lead, channels, high // r, r, wide // r, r))
    shape = (*lead, times(channels, r * r), high // r, wide // r)
    return copy(reshape(_blocks_apart(apart), shape))


def _unfold_blocks(call: AtenCall) -> Lowered:
    """[…, C, H, W] -> […, C h w, blocks], of blocks of h x w that touch and do not overlap."""
    x, block, dilation, padding, stride = call.args
    *lead, channels, high, wide = x.shape
    if not _touch(block, dilation, padding, stride) or not isinstance(channels, int):
        return None
    if not (isinstance(high, int) and isinstance(wide, int)):
        return None
    (h, w), n = block, len(lead)
    rows, columns = high // h, wide // w
    whole = narrow(narrow(x, n + 1, 0, rows * h), n + 2, 0, columns * w)
    apart = reshape(whole, (*lead, channels, rows, h, columns, w))
    return copy(reshape(_blocks_apart(apart), (*lead, channels * h * w, rows * columns)))


def _fold_blocks(call: AtenCall) -> Lowered:
    """[…, C h w, blocks] -> […, C, H, W], of blocks of h x w that touch and cover all of it."""
    x, size, block, dilation, padding, stride = call.args
    *lead, filled, _ = x.shape
    (h, w), (high, wide) = block, size
    if not _touch(block, dilation, padding, stride) or high % h or wide % w:
        return None
    apart = reshape(x, (*lead, filled // (h * w), h, w, high // h, wide // w))
    return copy(reshape(_blocks_in_place(apart), (*lead, filled // (h * w), high, wide)))


def _blocks_apart(x: TensorExpr) -> TensorExpr:
    """[…, rows, h, columns, w] -> […, h, w, rows, columns]."""
    n = len(x.shape) - 4
    return permute(x, [*range(n), n + 1, n + 3, n, n + 2])


def _blocks_in_place(x: TensorExpr) -> TensorExpr:
    """[…, h, w, rows, columns] -> […, rows, h, columns, w]."""
    n = len(x.shape) - 4
    return permute(x, [*range(n), n + 2, n, n + 3, n + 1])


def _touch(
    block: Sequence[int], dilation: Sequence[int], padding: Sequence[int], stride: Sequence[int]
) -> bool:
    """Whether blocks lie side by side, each without gaps, from the first element on."""
    return [*stride] == [*block] and {*dilation} == {1} and {*padding} == {0}


def _full(call: AtenCall) -> Lowered:
    value = FILLED[call.name] if call.name in FILLED else call.args[1]
    if not isinstance(value, bool | int | float):
        return None
    scalar = rounded(constant(value, call.dtype))
    spread = builder.expand(reshape(scalar, (1,) * len(call.shape)), call.shape)
    return copy(spread)


def _number(call: AtenCall) -> Lowered:
    """A tensor of one number that Python knows."""
    value = call.args[0]
    known = isinstance(value, bool | int | float) and call.dtype in OF_KERNELS
    return rounded(constant(value, call.dtype)) if known else None


LOWER: dict[str, Callable[[AtenCall], Lowered]] = {
    **{f"aten.{name}": _reshape for name in RESHAPES},
    **dict.fromkeys(SAME, _same),
    **dict.fromkeys(FILLS, _full),
    "aten.scalar_tensor": _number,
    "aten.copy": _copy_into,
    "aten.broadcast_tensors": _broadcast,
    "aten._to_copy": _to_copy,
    "aten.clone": _clone,
    "aten.transpose": _transpose,
    "aten.t": _transpose,
    "aten.permute": _permute,
    "aten.expand": _expand,
    "aten.slice": _slice,
    "aten.select": _select,
    "aten.unbind": _unbind,
    "aten.channel_shuffle": _channel_shuffle,
    "aten.pixel_shuffle": _pixel_shuffle,
    "aten.pixel_unshuffle": _pixel_unshuffle,
    "aten.im2col": _unfold_blocks,
    "aten.col2im": _fold_blocks,
    **dict.fromkeys(("aten.split", "aten.split_with_sizes"), _pieces),
}
