"""Product node -> Variant: which kernels compute it, and what every stage asks about them."""

from __future__ import annotations

from dataclasses import replace

from fusewright.ir.graph import Node, Size, times
from fusewright.kernels.gemm.launch import HALF, PACKED, PACKED_ROWS, UNPACKED
from fusewright.kernels.gemm.match import is_half, matrix, operands
from fusewright.kernels.tensor_core.tile import Tile
from fusewright.kernels.tensor_core.tile_cost import SPLIT_K, STREAM_K
from fusewright.kernels.tensor_core.variant import (
    EACH,
    FULL_FLOAT32,
    HALF_RATE,
    MMA_SYNC_TILES,
    ONCE,
    TILE_RATE,
    PingpongTile,
    Variant,
)

# TFLOP/s by the width of a tile; those of 96 and of 224 are predictions.
PACKED_RATE = {**TILE_RATE, 96: 190, 160: 213, 224: 233}
# By width and `swapped` [m: gemm-0029, gemm-0030, gemm-0031, gemm-0032, gemm-0035, gemm-0037].
GEMM_PINGPONG = {
    (128, False): PingpongTile(721, 3.2),
    (160, False): PingpongTile(742, 4.0),
    (192, False): PingpongTile(755, 4.0),
}


def _tensors(n: Node) -> tuple[Node, ...]:
    return tuple(f.tensor for f in operands(n))


def _split_sides(n: Node) -> tuple[bool, ...]:
    return tuple(k == 1 for k, f in enumerate(operands(n)) if f.splits)


def _elements(n: Node) -> tuple[Size, Size]:
    left, right = (times(f.batches, times(f.rows, f.depth)) for f in operands(n))
    return left, right


def _half_pingpong_fits(n: Node, tile: Tile, bare: bool) -> bool:
    """Beside the sums of more than 128 columns, no register is free for folds. `ordered` rows of
    the device text come in boxes of 32; others, where neighbours are rows, in boxes of 64."""
    narrow = min(GEMM_PINGPONG)[0]
    return (bare or tile.width == narrow) and (tile.width % 64 == 0 or not operands(n)[1].turned)


def _reads_eights(n: Node, tile: Tile) -> bool:
    """Lanes have so many: `ordered` of kernels/gemm/cuda/gemm_half_sm90.cuh."""
    return not tile.swapped and not operands(n)[1].turned


_PACKED = Variant(
    "gemm.packed",
    PACKED,
    matrix,
    _tensors,
    _split_sides,
    {False: (0,), True: (1,)},
    {False: (1, 3), True: (3, 1)},
    PACKED_RATE,
    FULL_FLOAT32,
    "float32 in two float16 parts, three products, float32 sums every 64 k",
    packed_sizes=_elements,
    adding=SPLIT_K,
    between=((), (96, 160, 224)),
    high=PACKED_ROWS,
    mma_sync=MMA_SYNC_TILES,
)
GEMM_UNPACKED = replace(
    _PACKED,
    kernel="gemm.unpacked",
    launcher=UNPACKED,
    reads=lambda n: all(f.splits for f in operands(n)),
    boxed=EACH,
    passes=ONCE,
    rate=TILE_RATE,
    packed_sizes=None,
    adding=None,
    between=((), ()),
    high={},
)
GEMM_PACKED = replace(_PACKED, unpacked=GEMM_UNPACKED)
GEMM_HALF = replace(
    GEMM_UNPACKED,
    kernel="gemm.half",
    launcher=HALF,
    reads=lambda _: True,
    reads_eights=_reads_eights,
    sides=lambda _: (False, True),
    rate=HALF_RATE,
    ends=True,
    cluster=2,
    adding=STREAM_K,
    own=GEMM_PINGPONG,
    pingpong_fits=_half_pingpong_fits,
    numeric="{dtype} with float32 sums",
    why="{dtype} as it is, float32 sums",
)


def variant_of(n: Node) -> Variant:
    """The variant of a product node's kernels."""
    return GEMM_HALF if is_half(n) else GEMM_PACKED
