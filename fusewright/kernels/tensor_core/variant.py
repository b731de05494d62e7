"""What the tensor-core kernels of one kind have in common: their sizes, tiles and rates.

A variant has one hand-written device section per target. Each family has its own rows, in its
`variants.py`. To the planner and the strategy, all of them compute

    result[batch][row][column] = sum over k of left[batch][row][k] * right[batch][column][k].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, Self

from fusewright.ir.graph import Node, Size
from fusewright.kernels.tensor_core.tile import TileShape
from fusewright.targets.arch import Arch, KernelName

SPLIT_ROWS = 128  # of a tile, of the factor that is not its width
K_SCALE_BLOCK = 64  # k that are scaled together: kernels/tensor_core/cuda/split_float32.cuh
# Width of a tile -> TFLOP/s with wgmma on an H200; only the ratios matter. 128 and 256 are as far
# apart as runs were [m: gemm-0001, gemm-0044]; 192 lies between, and 64 is a prediction.
TILE_RATE = {64: 159, 128: 207, 192: 235, 256: 250}
WIDTHS = tuple(TILE_RATE)
# The same with mma.sync, for as many elements of a tile [m: gemm-0008, gemm-0009, gemm-0010,
# gemm-0011].
MMA_SYNC_RATE = {64: 58, 128: 81, 192: 63, 256: 74}
# The same for 16 bits: a prediction, from the bytes that a tile moves through shared memory. That
# of 32, which convolutions have, is measured beside that of 64 [m: conv-0070].
HALF_RATE = {32: 290, 64: 450, 96: 550, 128: 630, 160: 690, 192: 730, 224: 755, 256: 770}
FULL_FLOAT32 = "ieee: full float32 from float16 terms"  # a numeric class


@dataclass(frozen=True)
class GemmShape:
    """The sizes of a product.

    column_dims: how many trailing dimensions of its node are columns.  inner_depth: that of the
    product which makes its left factor; None if that lies in memory.
    """

    batches: Size
    rows: Size
    columns: Size
    depth: Size
    column_dims: int = 1
    inner_depth: Size | None = None


@dataclass(frozen=True, kw_only=True)
class Variant:
    """What is the same for all kernels of one kind.

    kernel: whose tiles it has, as `Arch.kernels` names it.  matrix: the node's sizes.  numeric: its
    class.  why: how it computes, for the decision record.  reduces_over: what tiles can be reduced
    over, columns or rows (whose tiles then have rows where others have columns); None: nothing.
    sides: which values `TileShape.swap_operands` can have.  widths: of its tiles.
    between: [swap_operands] more of them, where nothing is reduced.
    """

    kernel: KernelName
    matrix: Callable[[Node], GemmShape]
    numeric: str
    why: str
    sides: Callable[[Node], tuple[bool, ...]]
    widths: Callable[[Node], tuple[int, ...]] = lambda _: WIDTHS
    between: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    reduces_over: Literal["columns", "rows"] | None = None

    @property
    def reduces_all_columns(self) -> bool:
        """Whether tiles may leave parts of a reduction over all columns, which a kernel behind
        joins."""
        return False


class MmaSyncTiles(NamedTuple):
    """What is otherwise about tiles of mma.sync: `rate` and `high` as in `RatedVariant`.

    They have no widths in between, no group of warps has one alone, and blocks share none.
    """

    rate: Mapping[int, int]
    high: Mapping[int, int]


# Its sums have the same registers for any width, so that wide tiles are half as high.
MMA_SYNC_TILES = MmaSyncTiles(MMA_SYNC_RATE, dict.fromkeys((192, 256), SPLIT_ROWS // 2))


@dataclass(frozen=True)
class PingpongTile:
    """A tile that one group of a block's warps has alone.

    rate: as in `TILE_RATE`, while the group multiplies.  high: rows.
    """

    rate: int
    high: int = SPLIT_ROWS


@dataclass(frozen=True, kw_only=True)
class RatedVariant(Variant):
    """One that may have any of several tiles.

    What is said of tiles is said of those of wgmma; `on` has what another architecture's are like.

    rate: TFLOP/s by the width of a tile.  high: rows of a tile by its width, where they are not
    128.  pingpong: by width and `swap_operands`; pingpong_fits: whether one of these fits, where
    nothing is reduced and where something is.  mma_sync: what is otherwise where that is the
    instruction; None: only what `on` says.
    """

    rate: Mapping[int, int]
    high: Mapping[int, int] = field(default_factory=dict)
    pingpong: Mapping[tuple[int, bool], PingpongTile] = field(default_factory=dict)
    pingpong_fits: Callable[[Node, TileShape, bool], bool] = lambda _, __, bare: bare
    mma_sync: MmaSyncTiles | None = None

    def on(self, arch: Arch) -> Self:
        """The same with the tiles that kernels of an architecture have."""
        if arch.tensor_core == "wgmma":
            return self
        rate, high = self.mma_sync or (self.rate, self.high)
        return replace(self, rate=rate, high=high, between=((), ()), pingpong={})
