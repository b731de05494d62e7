"""What the tensor-core kernels of one kind have in common: their sizes, tiles, rates and launcher.

A variant has one hand-written device section per target. Each family has its own rows, in its
`variants.py`. To the planner and the strategy, all of them compute

    result[batch][row][column] = sum over k of left[batch][row][k] * right[batch][column][k].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from fusewright.codegen.kernel_text import TYPES
from fusewright.ir.graph import Node, Size
from fusewright.kernels.tensor_core.tile import Tile
from fusewright.targets.arch import Arch, KernelName

SPLIT_ROWS = 128  # of a tile, of the factor that is not its width
STEP = 64  # k that are scaled together: kernels/tensor_core/cuda/split_float32.cuh
# Width of a tile -> TFLOP/s with wgmma on an H200; only the ratios matter. 192 lies between its
# neighbours.
TILE_RATE = {64: 159, 128: 207, 192: 235, 256: 250}
WIDTHS = tuple(TILE_RATE)
# The same with mma.sync, for as many elements of a tile [m: gemm-0008, gemm-0009, gemm-0010,
# gemm-0011].
MMA_SYNC_RATE = {64: 58, 128: 81, 192: 63, 256: 74}
# The same for 16 bits: a prediction, from the bytes that a tile moves through shared memory.
HALF_RATE = {64: 450, 96: 550, 128: 630, 160: 690, 192: 730, 224: 755, 256: 770}
FULL_FLOAT32 = "ieee: full float32 from float16 parts"  # a numeric class
EACH = {False: (0, 1), True: (0, 1)}
ONCE = {False: (1, 1), True: (1, 1)}


class PingpongTile(NamedTuple):
    """A tile that one group of a block's warps has alone.

    rate: as in `TILE_RATE`, while the group multiplies.  end: how many times as long as both groups
    one takes for what follows a tile or, where rates have that within, how many steps.  high: rows.
    """

    rate: int
    end: float
    high: int = SPLIT_ROWS


class AddingCost(NamedTuple):
    """What adding up the parts of a tile takes, in tenths of a step of its depth: once, and for
    each part.
    """

    once: int
    part: int


@dataclass(frozen=True)
class GemmShape:
    """The sizes of a product.

    column_dims: how many trailing dimensions of its node are columns.  inner: the depth of the
    product that makes its left factor, 0 if that lies in memory.
    """

    batches: Size
    rows: Size
    columns: Size
    depth: Size
    column_dims: int = 1
    inner: Size = 0


class MmaSyncTiles(NamedTuple):
    """What is otherwise about tiles of mma.sync: `rate` and `high` as in `Variant`.

    They have no widths in between, no group of warps has one alone, and blocks share none.
    """

    rate: Mapping[int, int]
    high: Mapping[int, int]


# Its sums have the same registers for any width, so that wide tiles are half as high.
MMA_SYNC_TILES = MmaSyncTiles(MMA_SYNC_RATE, dict.fromkeys((192, 256), SPLIT_ROWS // 2))


def left_and_right(n: Node) -> Sequence[str]:
    """The pointers of two factors."""
    stored = TYPES[n.dtype][0]
    return [f"const {stored}* left", f"const {stored}* right"]


@dataclass(frozen=True)
class TileLauncher:
    """How the device library's function that starts a tile's kernel is called, as C++ text.

    template_args: of a node, its tile, how many neighbouring columns are folded (0: none are), and
    the elements of an access.  arguments: behind the body; the second one is scratch memory or
    `nullptr`.  workspace: bytes of that, as `Launch` has them.  pointers: how the entry declares
    the tensors that are read as a whole.  structs, statements: of a kernel of this name, as
    `Launch` has them.
    """

    function: str
    template_args: Callable[[Node, Tile, int, int], Sequence[str | int]]
    arguments: Callable[[Node, str], Sequence[str]]
    workspace: Callable[[Node, Tile], str] = lambda *_: ""
    pointers: Callable[[Node], Sequence[str]] = left_and_right
    structs: Callable[[Node, str], Sequence[str]] = lambda *_: ()
    statements: Callable[[Node, str], Sequence[str]] = lambda *_: ()


@dataclass(frozen=True)
class Variant:
    """What is the same for all kernels of one kind; `swapped` is that of `Tile`.

    What is said of tiles is said of those of wgmma; `on` has what another architecture's are like.

    kernel: whose tiles it has, as `Arch.kernels` names it.  launcher: of its kernels.
    multi_image, pixel_sums: the same of tiles with pixels of two images, and of those that leave
    parts of a fold over all columns; None: there are none.
    matrix: the node's sizes.  whole: the tensors that a kernel reads as a whole, in the order of
    its arguments.  sides: which values `swapped` can have; stacks: where phases are stacked, as
    is_stacked says.  products: of one image.
    boxed: swapped -> which tensors must start at multiples of 16 bytes, for tensor maps.
    passes: swapped -> how often each tensor's bytes move, once for those not named.
    rate: TFLOP/s by the width of a tile.  ends: without what follows its product.  widths: of its
    tiles.  between: [swapped] more of them, where nothing is folded.  own: by width and `swapped`;
    pingpong_fits: whether one of these fits, where nothing is folded and where something is.
    packed_sizes: the elements of both factors, of which the smaller one is packed, which decides
    `swapped`; None: sizes decide nothing.  unpacked: its kernels that pack nothing.  reads: whether
    the factors lie as they must.  reads_eights: whether what follows may take eight elements at
    once.  folds: what tiles can be folded over, "columns" or "rows" (whose tiles then have rows
    where others have columns), "" if nothing.  high: rows of a tile by its width, where they are
    not 128.  cluster: thread blocks whose tiles are neighbours.  adding: what blocks that share
    a tile take to add its parts up; None: nobody shares a tile.  numeric: its class.  why: how it
    computes, for the decision record.
    mma_sync: what is otherwise where that is the instruction; None: only what `on` says.
    """

    kernel: KernelName
    launcher: TileLauncher
    matrix: Callable[[Node], GemmShape]
    whole: Callable[[Node], tuple[Node, ...]]
    sides: Callable[[Node], tuple[bool, ...]]
    boxed: Mapping[bool, tuple[int, ...]]
    passes: Mapping[bool, tuple[int, ...]]
    rate: Mapping[int, int]
    numeric: str
    why: str
    multi_image: TileLauncher | None = None
    pixel_sums: TileLauncher | None = None
    packed_sizes: Callable[[Node], tuple[Size, Size]] | None = None
    unpacked: Variant | None = None
    reads: Callable[[Node], bool] = lambda _: True
    reads_eights: Callable[[Node, Tile], bool] = lambda *_: False
    folds: str = "columns"
    cluster: int = 1
    adding: AddingCost | None = None
    ends: bool = False
    widths: Callable[[Node], tuple[int, ...]] = lambda _: WIDTHS
    between: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    own: Mapping[tuple[int, bool], PingpongTile] = field(default_factory=dict)
    pingpong_fits: Callable[[Node, Tile, bool], bool] = lambda _, __, bare: bare
    high: Mapping[int, int] = field(default_factory=dict)
    stacks: tuple[bool, ...] = (False, True)
    is_stacked: Callable[[Node], bool] = lambda _: False
    products: Callable[[Node], int] = lambda _: 1
    mma_sync: MmaSyncTiles | None = None

    def on(self, arch: Arch) -> Variant:
        """The same with the tiles that kernels of an architecture have."""
        if arch.tensor_core == "wgmma":
            return self
        rate, high = self.mma_sync or (self.rate, self.high)
        some = replace(self, rate=rate, high=high, between=((), ()), own={})
        return replace(some, adding=None, stacks=(False, True))

    def for_tile(self, tile: Tile) -> Variant:
        """The variant whose kernels have a tile: this one, or that which packs nothing."""
        return self.unpacked if tile.inline and self.unpacked else self

    def launcher_for(self, tile: Tile) -> TileLauncher:
        """The launcher of the kernels that have a tile."""
        special = self.pixel_sums if tile.summed else self.multi_image if tile.joined else None
        return special or self.for_tile(tile).launcher
