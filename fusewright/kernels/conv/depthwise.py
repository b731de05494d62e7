"""Depthwise convolution -> a map of pieces of the padded image, as a pool is (`pooling.py`).

    conv2d(x, w, b, groups=channels)  ->  b + w[:, 0, 0] * x[0:, 0:] + w[:, 0, 1] * x[0:, 1:] + ...

A channel has so few weights that memory is the limit and tensor cores would gain nothing; and what
follows joins the map. The sum is eager's: float32, from the bias on, tap by tap. A tap outside of
the image is left out, not multiplied by zero: its weight may be infinite.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product as combinations
from math import prod

import torch

from fusewright.common.dtypes import HALF
from fusewright.ir.builder import (
    TensorExpr,
    all_true,
    cast,
    constant,
    narrow,
    pad,
    pointwise,
    reshape,
)
from fusewright.ir.decompositions import wide
from fusewright.ir.graph import Node, node

DTYPES = (torch.float32, *HALF)
# 7 x 7. A single channel is not depthwise to PyTorch, which has better kernels for that: 3 x 3.
MOST_TAPS, MOST_OF_ONE = 49, 9


@dataclass(frozen=True)
class TapWindow:
    """The windows along one dimension of an image. out: how many.  low: where the first begins."""

    size: int
    out: int
    taps: int
    stride: int
    dilation: int
    low: int

    def tap(self, place: int) -> tuple[int, int, int, int]:
        """The first and the last element read there, and how far each of them is outside."""
        first = place * self.dilation - self.low
        last = first + (self.out - 1) * self.stride
        return first, last, max(0, -first), max(0, last + 1 - self.size)


def depthwise(
    image: Node, weight: Node, bias: Node | None, windows: Sequence[TapWindow], n: Node
) -> Node | None:
    """The convolution `n` as a map; None where it stays PyTorch's."""
    taps, (channels, out) = [range(w.taps) for w in windows], (image.shape[1], n.shape[1])
    count = prod(map(len, taps))
    most = MOST_TAPS if channels != 1 else MOST_OF_ONE
    if weight.shape[1] != 1 or n.dtype not in DTYPES or count > most:
        return None
    if not isinstance(channels, int) or not isinstance(out, int) or out % channels:
        return None
    if any(t.order for t in (image, weight, n)):
        return None
    each = (channels, out // channels, *(1 for _ in windows))  # results of one channel
    sides = (image.shape[0], channels, 1, *n.shape[2:])
    ones = all_true((1, 1, *image.shape[2:]))
    total = constant(0.0, torch.float32) if bias is None else wide(reshape(TensorExpr(bias), each))
    for places in combinations(*taps):
        w = TensorExpr(weight)
        for d, place in enumerate(places):
            w = narrow(w, 2 + d, place, place + 1)
        x = _tap(TensorExpr(image), windows, places)
        if x.node is image and count > 1:  # who computes the image has no use for this one
            x = _piece(x)
        inside = reshape(_tap(ones, windows, places), (1, 1, *sides[2:]))
        total = pointwise(
            "masked_fma", inside, total, wide(reshape(w, each)), wide(reshape(x, sides))
        )
    made = cast(reshape(total, n.shape), n.dtype).node
    return node("copy", [made], shape=n.shape, dtype=n.dtype, taps=count)


def _piece(x: TensorExpr) -> TensorExpr:
    """All of `x`, as what is read where it lies."""
    last = len(x.shape) - 1
    made = node(
        "narrow", [x.node], shape=x.shape, dtype=x.dtype, dim=last, start=0, end=x.shape[-1], step=1
    )
    return TensorExpr(made)


def _tap(x: TensorExpr, windows: Sequence[TapWindow], places: Sequence[int]) -> TensorExpr:
    """What all windows have at one place, along the last dimensions of `x`; 0 outside of it."""
    leading = len(x.shape) - len(windows)
    tapped = [w.tap(place) for w, place in zip(windows, places, strict=True)]
    none = False if x.dtype is torch.bool else 0.0
    x = pad(x, [*[(0, 0)] * leading, *((low, high) for _, _, low, high in tapped)], none)
    for d, ((first, last, low, _), w) in enumerate(zip(tapped, windows, strict=True), leading):
        x = narrow(x, d, first + low, last + low + 1, w.stride)
    return x
