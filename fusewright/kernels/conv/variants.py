"""Convolution node -> Variant: which kernels compute it, and what every stage asks about them."""

from __future__ import annotations

from dataclasses import replace

from fusewright.ir.graph import Node, times
from fusewright.ir.specs import ConvSpec, spec_of
from fusewright.kernels.conv import launch
from fusewright.kernels.conv.geometry import TRANSPOSED, geometry, is_stacked, parts, sources
from fusewright.kernels.gemm.match import is_half
from fusewright.kernels.gemm.variants import GEMM_HALF, GEMM_PACKED
from fusewright.kernels.tensor_core.variant import (
    EACH,
    FULL_FLOAT32,
    HALF_RATE,
    ONCE,
    SPLIT_ROWS,
    GemmShape,
    PingpongTile,
    Variant,
)

# TFLOP/s by the width of a tile in full float32, whose sums take three times the registers: a
# prediction.
FLOAT32_RATE = {64: 130, 128: 200}
# By width and `swapped` [m: conv-0039, conv-0040]; of transposed ones [m: conv-0041, conv-0042].
CONV_PINGPONG = {(160, False): PingpongTile(867, 10.0), (160, True): PingpongTile(793, 10.0)}
TRANSPOSED_PINGPONG = {(192, True): PingpongTile(1040, 10.0, high=SPLIT_ROWS // 2)}


def _patches(n: Node) -> GemmShape:
    g = geometry(n)
    depth = g.in_channels // g.groups * g.taps
    return GemmShape(times(g.images, g.products), g.rows, g.pixels, depth, len(n.shape) - 2)


def _pixels(n: Node) -> GemmShape:
    g, turned = geometry(n), _patches(n)
    images, rows = (1, times(g.images, g.pixels)) if g.joined else (g.images, g.pixels)
    return GemmShape(times(images, g.products), rows, turned.rows, turned.depth)


CONV = Variant(
    "conv",
    launch.CONV,
    _patches,
    lambda n: n.args,
    lambda _: (False, True),
    {False: (), True: ()},
    {False: (2, 2), True: (2, 2)},  # read, and as float16 written and read
    HALF_RATE,
    "tf32: operands rounded to 11 bits, as eager's, with float32 sums",
    "operands scaled and rounded to the 11 bits of TF32, float32 sums",
    multi_image=launch.MULTI_IMAGE,
    pixel_sums=launch.PIXEL_SUMS,
    folds="rows",
    is_stacked=is_stacked,
    products=lambda n: geometry(n).products,
)
CONV_HALF = replace(
    CONV, passes={False: (3, 3), True: (3, 3)}, numeric=GEMM_HALF.numeric, why=GEMM_HALF.why
)
CONV_FLOAT32 = replace(
    CONV,
    passes={False: (3, 3), True: (3, 3)},
    rate=FLOAT32_RATE,
    numeric=FULL_FLOAT32,
    why=GEMM_PACKED.why,
    widths=lambda _: tuple(FLOAT32_RATE),
)


def _channels_last(ordinary: Variant) -> Variant:
    some = replace(ordinary, launcher=launch.CHANNELS_LAST, matrix=_pixels, whole=sources)
    return replace(some, multi_image=None, pixel_sums=None, folds="")


def _transposed(ordinary: Variant) -> Variant:
    last = ordinary.launcher is launch.CHANNELS_LAST
    some = replace(
        ordinary,
        launcher=launch.TRANSPOSED_CHANNELS_LAST if last else launch.TRANSPOSED,
        multi_image=None,
        pixel_sums=None,
        why=f"{ordinary.why}, a convolution for each phase",
        folds="",
    )
    own = TRANSPOSED_PINGPONG if ordinary.own else {}
    return replace(some, between=((), ()), own=own, stacks=(True,))  # subpixel_store_sm90.cuh


def _space_to_depth(ordinary: Variant) -> Variant:
    why = f"{ordinary.why}, pixels of a cell as channels"
    some = replace(ordinary, launcher=launch.SPACE_TO_DEPTH, why=why)
    return replace(some, multi_image=None, pixel_sums=None)


def _pooled(ordinary: Variant) -> Variant:
    some = replace(ordinary, launcher=launch.POOLED, multi_image=None, pixel_sums=None)
    return replace(some, folds="", between=((), ()), own={})


# By whether it has 16 bits, the parts of a number, and whether channels lie last.
CONVOLUTIONS = {
    (False, 1, False): replace(CONV, between=((160, 224), (96, 160, 224)), own=CONV_PINGPONG),
    (False, 2, False): CONV_FLOAT32,
    (True, 1, False): replace(CONV_HALF, between=((), (96, 160, 224))),
    (False, 1, True): _channels_last(CONV),
    (False, 2, True): _channels_last(CONV_FLOAT32),
    (True, 1, True): replace(_channels_last(CONV_HALF), boxed=EACH, passes=ONCE),
}
TRANSPOSED_CONVOLUTIONS = {key: _transposed(kind) for key, kind in CONVOLUTIONS.items()}
# Of stride 1, tiles leave as those of any convolution do.
OF_STRIDE_1 = {
    key: replace(_transposed(kind), between=kind.between, own={})
    for key, kind in CONVOLUTIONS.items()
}
# Channels do not lie last.
CONV_SPACE_TO_DEPTH = {k: _space_to_depth(v) for k, v in CONVOLUTIONS.items() if not k[-1]}
CONV_POOLED = {k: _pooled(v) for k, v in CONVOLUTIONS.items() if not k[-1]}


def variant_of(n: Node) -> Variant:
    """The variant of a convolution node's kernels."""
    spec = spec_of(n, ConvSpec)
    key = is_half(n), parts(n), bool(n.order) and not spec.cell
    if spec.cell:
        return CONV_SPACE_TO_DEPTH[key]
    if n.op == TRANSPOSED:
        return (OF_STRIDE_1 if max(spec.stride) == 1 else TRANSPOSED_CONVOLUTIONS)[key]
    return (CONV_POOLED if spec.pool_window else CONVOLUTIONS)[key]
