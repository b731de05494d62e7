"""Product node -> GemmVariant: which kernels compute it, and what every stage asks about them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from fusewright.ir.graph import Node
from fusewright.kernels.gemm.launch import PACKED_ROWS
from fusewright.kernels.gemm.match import is_half, matrix, operands
from fusewright.kernels.gemm.tile import Packing, SplitK, StreamK
from fusewright.kernels.tensor_core.tile import TileShape
from fusewright.kernels.tensor_core.variant import (
    FULL_FLOAT32,
    HALF_RATE,
    MMA_SYNC_TILES,
    TILE_RATE,
    PingpongTile,
    RatedVariant,
)
from fusewright.targets.arch import Arch

# TFLOP/s by the width of a tile; those of 96, 160 and 224 are predictions, of which runs bore out
# the first two [m: gemm-0038, gemm-0039].
PACKED_RATE = {**TILE_RATE, 96: 190, 160: 213, 224: 233}


@dataclass(frozen=True, kw_only=True)
class GemmPingpong(PingpongTile):
    """ending: how many times as long as both groups one takes for what follows a tile."""

    ending: float


# By width and `swap_operands` [m: gemm-0029, gemm-0030, gemm-0031, gemm-0032, gemm-0035,
# gemm-0037].
GEMM_PINGPONG = {
    (128, False): GemmPingpong(721, ending=3.2),
    (160, False): GemmPingpong(742, ending=4.0),
    (192, False): GemmPingpong(755, ending=4.0),
}


@dataclass(frozen=True, kw_only=True)
class GemmVariant(RatedVariant):
    """packing: of its factors.  sharing: how blocks may share the depth of tiles; None: not at all.
    cluster: thread blocks whose tiles are neighbours.
    rates_have_ending: whether `rate` counts what follows a product.  reads_eights: whether that may
    take eight elements at once."""

    packing: Packing
    pingpong: Mapping[tuple[int, bool], GemmPingpong] = field(default_factory=dict)
    sharing: type[SplitK | StreamK] | None = None
    cluster: int = 1
    rates_have_ending: bool = True
    reads_eights: Callable[[Node, TileShape], bool] = lambda *_: False

    def on(self, arch: Arch) -> Self:
        there = super().on(arch)
        return there if arch.tensor_core == "wgmma" else replace(there, sharing=None)


def _split_sides(n: Node) -> tuple[bool, ...]:
    return tuple(k == 1 for k, f in enumerate(operands(n)) if f.splits)


def _half_pingpong_fits(n: Node, tile: TileShape, bare: bool) -> bool:
    """Beside the sums of more than 128 columns, no register is free for reductions. `ordered` rows
    of the device text come in boxes of 32; others, where neighbours are rows, in boxes of 64."""
    narrow = min(GEMM_PINGPONG)[0]
    return (bare or tile.width == narrow) and (tile.width % 64 == 0 or not operands(n)[1].turned)


def _reads_eights(n: Node, tile: TileShape) -> bool:
    """Lanes have so many: `ordered` of kernels/gemm/cuda/gemm_half_sm90.cuh."""
    return not tile.swap_operands and not operands(n)[1].turned


GEMM_PACKED = GemmVariant(
    kernel="gemm.packed",
    packing="packed",
    matrix=matrix,
    numeric=FULL_FLOAT32,
    why="float32 as two float16 terms, three products, float32 sums every 64 k",
    sides=_split_sides,
    reduces_over="columns",
    rate=PACKED_RATE,
    high=PACKED_ROWS,
    between=((), (96, 160, 224)),
    sharing=SplitK,
    mma_sync=MMA_SYNC_TILES,
)
GEMM_UNPACKED = replace(
    GEMM_PACKED,
    kernel="gemm.unpacked",
    packing="unpacked",
    rate=TILE_RATE,
    high={},
    between=((), ()),
    sharing=None,
)
GEMM_HALF = GemmVariant(
    kernel="gemm.half",
    packing="half",
    matrix=matrix,
    numeric="{dtype} with float32 sums",
    why="{dtype} as it is, float32 sums",
    sides=lambda _: (False, True),
    reduces_over="columns",
    rate=HALF_RATE,
    rates_have_ending=False,
    pingpong=GEMM_PINGPONG,
    pingpong_fits=_half_pingpong_fits,
    sharing=StreamK,
    cluster=2,
    reads_eights=_reads_eights,
)
BY_PACKING: Mapping[Packing, GemmVariant] = {
    kind.packing: kind for kind in (GEMM_PACKED, GEMM_UNPACKED, GEMM_HALF)
}


def variant_of(n: Node) -> GemmVariant:
    """The variant of a matmul node's kernels, where scratch memory is not forbidden."""
    return GEMM_HALF if is_half(n) else GEMM_PACKED
