"""ConvGeometry -> what a kernel of float32 multiplies in vain, and how much of it pays.

PyTorch's own with our tail is as fast beyond these limits, which are taken from random convolutions
[m: conv-0026, conv-0027, conv-0028, conv-0029]. They keep only what was measured to be no slower.
"""

from __future__ import annotations

from enum import Enum, auto
from math import prod

from fusewright.kernels.conv.geometry import ConvGeometry

TF32_CHANNELS, WHOLE = 32, (64, 128)  # WHOLE: one or two chunks
THIN_RESULTS, DEEP_SUMS = 64, 2000
# How often a kernel multiplies what has to be multiplied once, by its parts. LIGHT_WASTE: of TF32
# in flat images with a tail, or in lines, and of transposed ones of many channels in full float32.
# BARE_WASTE: of few channels and results without a tail.
MOST_WASTE, LIGHT_WASTE, BARE_WASTE = {1: 6.0, 2: 15.0}, 8.0, 5.5
APART = 4 / 3  # so much more where taps are apart


class ConvThreshold(Enum):
    """What a convolution is that has to have so many operations to be worth a kernel.

    By its type, or where that is more or less: groups, for each of which PyTorch's own is several
    kernels; few results that lie channels last; single pixels with fewer results than channels;
    deep sums of a transposed one; tiles that are mostly empty.
    """

    FLOAT32 = auto()
    FLOAT16 = auto()
    BFLOAT16 = auto()
    GROUPED = auto()
    THIN_RESULTS = auto()
    SHRINKING_1X1 = auto()
    DEEP_TRANSPOSED = auto()
    EMPTY_TILES = auto()


def padding_overhead(g: ConvGeometry) -> float:
    """What a product multiplies over what has to be: channels and results are filled up, and
    patches of transposed ones reach beyond the image."""
    pixels = prod(g.in_size) if g.phases else g.pixels
    needed = g.out_channels * pixels * g.in_channels // g.groups * prod(g.kernel)
    rows = -(-g.rows // THIN_RESULTS) * THIN_RESULTS * g.products
    return rows * g.pixels * g.walk.taps * g.channels / needed


def max_padding_overhead(g: ConvGeometry, *, full: bool, bare: bool) -> float:
    """How much of it pays, times 3 in full float32. PyTorch's own is slow in groups of two
    dimensions, and where few channels have taps that are apart."""
    depth, height, _ = g.in_size
    flat, apart, few = depth == 1, max(g.dilation) > 1, g.in_channels < TF32_CHANNELS
    if (apart and few) if g.groups == 1 else flat:
        return float("inf")
    backwards = full and g.phases and g.groups == 1 and not few
    most = LIGHT_WASTE if backwards else MOST_WASTE[1 + full]
    if apart and g.groups == 1:
        return most * APART
    if not flat or g.phases:
        return most
    bare = bare and height > 1
    if full:
        return BARE_WASTE if bare and few and g.out_channels < THIN_RESULTS else most
    return most if bare else LIGHT_WASTE


def is_shrinking_1x1(g: ConvGeometry, *, full: bool, bare: bool) -> bool:
    """Whether single pixels have fewer results than channels, or less than half as many where a
    tail follows, and are not one or two whole chunks. One beside the other, full float32 pays; of
    strided ones, it packs what nobody multiplies."""
    few = g.out_channels * (2 - bare) < g.in_channels
    few = few and not (g.channels in WHOLE and 2 * g.out_channels >= THIN_RESULTS)
    across = g.in_size[0] == 1 and g.stride[1] > 1
    slower = g.out_channels < THIN_RESULTS * (1 + across) if max(g.stride) > 1 else not full
    return g.taps == g.groups == 1 and few and slower


def is_deep_transposed(g: ConvGeometry) -> bool:
    """Whether results of a transposed one are such long sums that a tile takes longer than all of
    few do in parts."""
    return g.phases is not None and g.taps * g.channels >= DEEP_SUMS
