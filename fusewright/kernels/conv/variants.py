"""Convolution node -> ConvVariant: which kernels compute it, and what stages ask about them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from fusewright.ir.graph import Node, times
from fusewright.ir.specs import ConvSpec, spec_of
from fusewright.kernels.conv import launch
from fusewright.kernels.conv.geometry import TRANSPOSED, geometry, parts
from fusewright.kernels.conv.launch import ConvLauncher
from fusewright.kernels.conv.tile import ConvTile
from fusewright.kernels.gemm.match import is_half
from fusewright.kernels.gemm.variants import GEMM_HALF, GEMM_PACKED
from fusewright.kernels.tensor_core.variant import (
    FULL_FLOAT32,
    HALF_RATE,
    SPLIT_ROWS,
    GemmShape,
    PingpongTile,
    RatedVariant,
)
from fusewright.targets.arch import Arch

# TFLOP/s by the width of a tile in full float32, whose sums take three times the registers: a
# prediction. That of 32 beside that of 64 is measured [m: conv-0073].
FLOAT32_RATE = {32: 83, 64: 130, 128: 200}
FLOAT32_WIDTHS = (64, 128)
# [swap_operands] more widths of tiles, where columns are pixels and where they are channels. The
# least is for as few channels: a wider tile would fetch weights that are not there.
FEW_CHANNELS = 32
BETWEEN = ((160, 224), (FEW_CHANNELS, 96, 160, 224))


@dataclass(frozen=True, kw_only=True)
class ConvPingpong(PingpongTile):
    """ending_steps: what follows a tile, in steps of its depth."""

    ending_steps: float


# By width and `swap_operands` [m: conv-0039, conv-0040]; of transposed ones [m: conv-0041,
# conv-0042].
CONV_PINGPONG = {
    (160, False): ConvPingpong(867, ending_steps=10.0),
    (160, True): ConvPingpong(793, ending_steps=10.0),
}
TRANSPOSED_PINGPONG = {
    (192, True): ConvPingpong(1040, high=SPLIT_ROWS // 2, ending_steps=10.0),
}


@dataclass(frozen=True, kw_only=True)
class ConvVariant(RatedVariant):
    """launcher: of its kernels.  multi_image: of those whose tiles have pixels of two images;
    pixel_reduction: of those that leave parts of a reduction over all pixels; None: there are none.
    stacks: which values `TileShape.swap_operands` can have where phases are stacked."""

    launcher: ConvLauncher
    multi_image: ConvLauncher | None = None
    pixel_reduction: ConvLauncher | None = None
    pingpong: Mapping[tuple[int, bool], ConvPingpong] = field(default_factory=dict)
    stacks: tuple[bool, ...] = (False, True)

    @property
    def reduces_all_columns(self) -> bool:
        return self.pixel_reduction is not None

    def on(self, arch: Arch) -> Self:
        there = super().on(arch)
        return there if arch.tensor_core == "wgmma" else replace(there, stacks=(False, True))

    def launcher_for(self, tile: ConvTile) -> ConvLauncher:
        """The launcher of the kernels that have a tile."""
        if tile.output == "pixel_reduction":
            found = self.pixel_reduction
        else:
            found = self.multi_image if tile.images == "multi" else self.launcher
        assert found is not None, "a tile is one of its variant's"
        return found


def _patches(n: Node) -> GemmShape:
    g = geometry(n)
    depth = g.in_channels // g.groups * g.taps
    return GemmShape(times(g.images, g.products), g.rows, g.pixels, depth, len(n.shape) - 2)


def _pixels(n: Node) -> GemmShape:
    g, turned = geometry(n), _patches(n)
    images, rows = (1, times(g.images, g.pixels)) if g.joined else (g.images, g.pixels)
    return GemmShape(times(images, g.products), rows, turned.rows, turned.depth)


CONV = ConvVariant(
    kernel="conv",
    launcher=launch.CONV,
    multi_image=launch.MULTI_IMAGE,
    pixel_reduction=launch.PIXEL_SUMS,
    matrix=_patches,
    numeric="tf32: operands rounded to 11 bits, as eager's, with float32 sums",
    why="operands scaled and rounded to the 11 bits of TF32, float32 sums",
    sides=lambda _: (False, True),
    reduces_over="rows",
    rate=HALF_RATE,
)
CONV_HALF = replace(CONV, numeric=GEMM_HALF.numeric, why=GEMM_HALF.why)
CONV_FLOAT32 = replace(
    CONV,
    numeric=FULL_FLOAT32,
    why=GEMM_PACKED.why,
    rate=FLOAT32_RATE,
    widths=lambda _: FLOAT32_WIDTHS,
    between=((), (FEW_CHANNELS,)),
)


def _channels_last(ordinary: ConvVariant) -> ConvVariant:
    some = replace(ordinary, launcher=launch.CHANNELS_LAST, matrix=_pixels)
    some = replace(some, between=((), ()))
    return replace(some, multi_image=None, pixel_reduction=None, reduces_over=None)


def _transposed(ordinary: ConvVariant) -> ConvVariant:
    last = ordinary.launcher is launch.CHANNELS_LAST
    some = replace(
        ordinary,
        launcher=launch.TRANSPOSED_CHANNELS_LAST if last else launch.TRANSPOSED,
        multi_image=None,
        pixel_reduction=None,
        why=f"{ordinary.why}, a convolution for each phase",
        reduces_over=None,
    )
    pingpong = TRANSPOSED_PINGPONG if ordinary.pingpong else {}
    # subpixel_store_sm90.cuh
    return replace(some, between=((), ()), pingpong=pingpong, stacks=(True,))


def _space_to_depth(ordinary: ConvVariant) -> ConvVariant:
    why = f"{ordinary.why}, pixels of a cell as channels"
    some = replace(ordinary, launcher=launch.SPACE_TO_DEPTH, why=why)
    return replace(some, multi_image=None, pixel_reduction=None)


def _pooled(ordinary: ConvVariant) -> ConvVariant:
    some = replace(ordinary, launcher=launch.POOLED, multi_image=None, pixel_reduction=None)
    return replace(some, reduces_over=None, between=((), ()), pingpong={})


# By whether it has 16 bits, the parts of a number, and whether channels lie last.
CONVOLUTIONS = {
    (False, 1, False): replace(CONV, between=BETWEEN, pingpong=CONV_PINGPONG),
    (False, 2, False): CONV_FLOAT32,
    (True, 1, False): replace(CONV_HALF, between=((), BETWEEN[True])),
    (False, 1, True): _channels_last(CONV),
    (False, 2, True): _channels_last(CONV_FLOAT32),
    (True, 1, True): _channels_last(CONV_HALF),
}
TRANSPOSED_CONVOLUTIONS = {key: _transposed(kind) for key, kind in CONVOLUTIONS.items()}
# Of stride 1, tiles leave as those of any convolution do.
OF_STRIDE_1 = {
    key: replace(_transposed(kind), between=kind.between, pingpong={})
    for key, kind in CONVOLUTIONS.items()
}
# Channels do not lie last.
CONV_SPACE_TO_DEPTH = {k: _space_to_depth(v) for k, v in CONVOLUTIONS.items() if not k[-1]}
CONV_POOLED = {k: _pooled(v) for k, v in CONVOLUTIONS.items() if not k[-1]}


def variant_of(n: Node) -> ConvVariant:
    """The variant of a convolution node's kernels."""
    spec = spec_of(n, ConvSpec)
    key = is_half(n), parts(n), bool(n.order) and not spec.cell
    if spec.cell:
        return CONV_SPACE_TO_DEPTH[key]
    if n.op == TRANSPOSED:
        return (OF_STRIDE_1 if max(spec.stride) == 1 else TRANSPOSED_CONVOLUTIONS)[key]
    return (CONV_POOLED if spec.pool_window else CONVOLUTIONS)[key]
