"""Sizes of a transposed convolution -> SubpixelPhases: convolutions of stride 1, one a phase.

Along a dimension, pixel  stride * q + phase - shift  of the result sees the image's pixels
q + offset, one for each tap that fits; all pixels of a phase have the same offsets. So each phase
is an ordinary convolution, and nothing is filled up with zeros. Phases with the same offsets can
be `stacked`: rows of one product.
"""

from __future__ import annotations

from dataclasses import dataclass

Triple = tuple[int, int, int]
# Whose phases leave as parts of one vector; and how many, kernels/conv/cuda/transposed.cuh.
STACKED_STRIDES, MOST_STACKED = (2, 4), 16
NARROWEST = 64  # columns of a tile


@dataclass(frozen=True)
class SubpixelPhases:
    """stacked: how many phases along each dimension are rows of one product, 1 where they are not.
    loose: how many have products of their own.  shift: along the width.  places: how many q there
    are.  lowest: the first offset.  reach: from there to the last one.  taps: of a phase, at most.
    """

    stacked: Triple
    loose: Triple
    shift: int
    places: Triple
    lowest: Triple
    reach: Triple
    taps: Triple


@dataclass(frozen=True)
class _Dimension:
    """The same of one dimension."""

    stacked: int
    loose: int
    shift: int
    places: int
    lowest: int
    reach: int
    taps: int


def phases(
    kernel: Triple, stride: Triple, pad: Triple, dilation: Triple, out_size: Triple, channels: int
) -> SubpixelPhases:
    """The phases of a transposed convolution whose result has `out_size` pixels, and a group of it
    so many channels; 0: each phase has products of its own."""
    every = list(zip(kernel, stride, pad, dilation, out_size, strict=True))
    found: list[_Dimension] = []
    stacked = 1
    for d in (2, 1, 0):
        found.insert(0, _dimension(*every[d], wide=d == 2, stacked=stacked, channels=channels))
        stacked *= found[0].stacked

    def three(name: str) -> Triple:
        a, b, c = (getattr(dimension, name) for dimension in found)
        return a, b, c

    fields = ("places", "lowest", "reach", "taps")
    return SubpixelPhases(three("stacked"), three("loose"), found[2].shift, *map(three, fields))


def _dimension(
    k: int, s: int, p: int, d: int, out: int, *, wide: bool, stacked: int, channels: int
) -> _Dimension:
    """Neighbours along the width leave together, even if some taps are zero then; others are
    stacked where all phases have the same taps, or where rows of zeros are no more work."""
    shift = p % s
    offsets = [
        [(phase - shift + p - t * d) // s for t in range(k) if (phase - shift + p - t * d) % s == 0]
        for phase in range(s)
    ]
    every = [offset for some in offsets for offset in some]
    lowest, reach = min(every), max(every) - min(every)
    rows = channels * stacked
    alone = _columns(rows) * sum(max(len(some), 1) for some in offsets)
    pays = wide or k % s == 0 or _columns(rows * s) * (reach + 1) <= alone
    fits = channels > 0 and s * stacked <= MOST_STACKED
    together = s in STACKED_STRIDES and d == 1 and pays and fits
    taps = reach + 1 if together else max(map(len, offsets))
    count = s if together else 1
    return _Dimension(count, s // count, shift, -(-(out + shift) // s), lowest, reach, taps)


def _columns(rows: int) -> int:
    """The columns of the tiles that so many rows of weights take."""
    return -(-rows // NARROWEST) * NARROWEST
