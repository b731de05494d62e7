"""Product node -> Variant: which kernels compute it, and what every stage asks about them.

A family has one hand-written skeleton per target. To the planner and the strategy, all of them
compute  result[batch][row][column] = sum over k of left[batch][row][k] * right[batch][column][k].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from fusewright.ir.graph import Node, Size, numel, times
from fusewright.ir.specs import ConvSpec, spec_of
from fusewright.kernels.attention.match import scores, sides, width
from fusewright.kernels.conv.geometry import CONVOLUTIONS, geometry, parts, sources
from fusewright.kernels.gemm.match import batches, is_half, operands
from fusewright.targets.arch import Arch, KernelName

SPLIT_ROWS = 128  # of a tile, of the factor that is not its width
# Width of a tile -> TFLOP/s with wgmma on an H200, 192 between its neighbours; only the ratios
# matter.
TILE_RATE = {64: 159, 128: 207, 192: 235, 256: 250}
# Those of 96 and of 224 are predictions.
SPLIT_RATE = {**TILE_RATE, 96: 190, 160: 213, 224: 233}
# The same with mma.sync, for as many elements of a tile [m: gemm-0008, gemm-0009, gemm-0010,
# gemm-0011].
MMA_SYNC_RATE = {64: 58, 128: 81, 192: 63, 256: 74}
# The same for 16 bits: a prediction, from the bytes that a tile moves through shared memory.
HALF_RATE = {64: 450, 96: 550, 128: 630, 160: 690, 192: 730, 224: 755, 256: 770}
# The same of convolutions in full float32, whose sums take three times the registers: a prediction.
FULL_RATE = {64: 130, 128: 200}
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


# By width and `swapped` [m: gemm-0029, gemm-0030, gemm-0031, gemm-0032, gemm-0035, gemm-0037].
OWN = {
    (128, False): PingpongTile(721, 3.2),
    (160, False): PingpongTile(742, 4.0),
    (192, False): PingpongTile(755, 4.0),
}
# The same of convolutions [m: conv-0039, conv-0040], of transposed ones [m: conv-0041, conv-0042].
CONVOLUTION_OWN = {(160, False): PingpongTile(867, 10.0), (160, True): PingpongTile(793, 10.0)}
TRANSPOSED_OWN = {(192, True): PingpongTile(1040, 10.0, high=SPLIT_ROWS // 2)}


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


@dataclass(frozen=True)
class Variant:
    """What is the same for all kernels of one kind; `swapped` is that of `Tile`.

    What is said of tiles is said of those of wgmma; `on` has what another architecture's are like.

    kernel: whose tiles it has, as `Arch.kernels` names it.  launcher: the skeleton's function.
    matrix: the node's sizes.  whole: the tensors that a kernel reads as a whole, in the order of
    its arguments.  sides: which values `swapped` can have; stacks: where phases are stacked.
    boxed: swapped -> which tensors must start at multiples of 16 bytes, for tensor maps.
    passes: swapped -> how often each tensor's bytes move, once for those not named.
    rate: TFLOP/s by the width of a tile.  ends: without what follows its product.  widths: of its
    tiles.  between: [swapped] more of them, where nothing is folded.  own: by width and `swapped`.
    packs: the smaller tensor is packed, which decides `swapped`.  folds: what tiles can be folded
    over, "columns" or "rows" (whose tiles then have rows where others have columns), "" if nothing.
    high: rows of a tile by its width, where they are not 128.
    cluster: thread blocks whose tiles are neighbours.  adding: what adding up the parts of a tile
    takes, in steps of its depth, once and for each part (a prediction); (): nobody shares a tile.
    numeric: its class.  why: how it computes, for the decision record.
    mma_sync: what is otherwise where that is the instruction; None: only what `on` says.
    """

    kernel: KernelName
    launcher: str
    matrix: Callable[[Node], GemmShape]
    whole: Callable[[Node], tuple[Node, ...]]
    sides: Callable[[Node], tuple[bool, ...]]
    boxed: Mapping[bool, tuple[int, ...]]
    passes: Mapping[bool, tuple[int, ...]]
    rate: Mapping[int, int]
    numeric: str
    why: str
    packs: bool = False
    folds: str = "columns"
    cluster: int = 1
    adding: tuple[float, ...] = ()
    ends: bool = False
    widths: Callable[[Node], tuple[int, ...]] = lambda _: tuple(TILE_RATE)
    between: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    own: Mapping[tuple[int, bool], PingpongTile] = field(default_factory=dict)
    high: Mapping[int, int] = field(default_factory=dict)
    stacks: tuple[bool, ...] = (False, True)
    mma_sync: MmaSyncTiles | None = None

    def on(self, arch: Arch) -> Variant:
        """The same with the tiles that kernels of an architecture have."""
        if arch.tensor_core == "wgmma":
            return self
        rate, high = self.mma_sync or (self.rate, self.high)
        some = replace(self, rate=rate, high=high, between=((), ()), own={})
        return replace(some, adding=(), stacks=(False, True))


def _matrix(n: Node) -> GemmShape:
    left, right = operands(n)
    return GemmShape(batches(n), left.rows, right.rows, left.depth)


def _tensors(n: Node) -> tuple[Node, ...]:
    return tuple(f.tensor for f in operands(n))


def _split_sides(n: Node) -> tuple[bool, ...]:
    return tuple(k == 1 for k, f in enumerate(operands(n)) if f.splits)


def _patches(n: Node) -> GemmShape:
    g = geometry(n)
    depth = g.in_channels // g.groups * g.taps
    return GemmShape(times(g.images, g.products), g.rows, g.pixels, depth, len(n.shape) - 2)


def _pixels(n: Node) -> GemmShape:
    g, turned = geometry(n), _patches(n)
    images, rows = (1, times(g.images, g.pixels)) if g.joined else (g.images, g.pixels)
    return GemmShape(times(images, g.products), rows, turned.rows, turned.depth)


def _attended(n: Node) -> GemmShape:
    queries, keys, values = sides(n)
    return GemmShape(numel(n.shape[:-2]), queries.rows, values.rows, keys.rows, inner=keys.depth)


SPLIT = Variant(
    "gemm.packed",
    "run_product",
    _matrix,
    _tensors,
    _split_sides,
    {False: (0,), True: (1,)},
    {False: (1, 3), True: (3, 1)},
    SPLIT_RATE,
    "ieee: full float32 from float16 parts",
    "float32 in two float16 parts, three products, float32 sums every 64 k",
    packs=True,
    adding=(3, 0.6),
    between=((), (96, 160, 224)),
    high={64: 192, 96: 192},
    mma_sync=MMA_SYNC_TILES,
)
INLINE = replace(
    SPLIT, kernel="gemm.unpacked", launcher="run_product_inline", boxed=EACH, passes=ONCE,
    rate=TILE_RATE, packs=False, adding=(), between=((), ()), high={},
)  # fmt: skip
HALF = replace(
    INLINE,
    kernel="gemm.half",
    launcher="run_product_half",
    sides=lambda _: (False, True),
    rate=HALF_RATE,
    ends=True,
    cluster=2,
    adding=(12, 1.8),
    own=OWN,
    numeric="{dtype} with float32 sums",
    why="{dtype} as it is, float32 sums",
)
CONVOLUTION = Variant(
    "conv",
    "run_convolution",
    _patches,
    lambda n: n.args,
    lambda _: (False, True),
    {False: (), True: ()},
    {False: (2, 2), True: (2, 2)},  # read, and as float16 written and read
    HALF_RATE,
    "tf32: operands rounded to 11 bits, as eager's, with float32 sums",
    "operands scaled and rounded to the 11 bits of TF32, float32 sums",
    folds="rows",
)
HALF_CONVOLUTION = replace(
    CONVOLUTION, passes={False: (3, 3), True: (3, 3)}, numeric=HALF.numeric, why=HALF.why
)


FULL_CONVOLUTION = replace(
    CONVOLUTION,
    passes={False: (3, 3), True: (3, 3)},
    rate=FULL_RATE,
    numeric=SPLIT.numeric,
    why=SPLIT.why,
    widths=lambda _: tuple(FULL_RATE),
)


def _last(ordinary: Variant) -> Variant:
    name = f"{ordinary.launcher}_last"
    return replace(ordinary, launcher=name, matrix=_pixels, whole=sources, folds="")


def _transposed(ordinary: Variant) -> Variant:
    name = ordinary.launcher.replace("convolution", "transposed")
    why = f"{ordinary.why}, a convolution for each phase"
    own = TRANSPOSED_OWN if ordinary.own else {}
    some = replace(ordinary, launcher=name, why=why, folds="", between=((), ()), own=own)
    return replace(some, stacks=(True,))  # subpixel_store_sm90.cuh


LAST = _last(CONVOLUTION)
# Operator, whether it has 16 bits, the parts of a number, and whether channels lie last.
OF_CONVOLUTIONS = {
    ("convolution", False, 1, False): replace(
        CONVOLUTION, between=((160, 224), (96, 160, 224)), own=CONVOLUTION_OWN
    ),
    ("convolution", False, 2, False): FULL_CONVOLUTION,
    ("convolution", True, 1, False): replace(HALF_CONVOLUTION, between=((), (96, 160, 224))),
    ("convolution", False, 1, True): LAST,
    ("convolution", False, 2, True): _last(FULL_CONVOLUTION),
    ("convolution", True, 1, True): replace(_last(HALF_CONVOLUTION), boxed=EACH, passes=ONCE),
}
OF_CONVOLUTIONS |= {
    ("transposed_convolution", half, parts, last): _transposed(kind)
    for (_, half, parts, last), kind in OF_CONVOLUTIONS.items()
}
TRANSPOSED, TRANSPOSED_LAST = _transposed(CONVOLUTION), _transposed(LAST)
# Of stride 1, tiles leave as those of any convolution do.
OF_STRIDE_1 = {
    ("transposed_convolution", half, parts, last): replace(
        _transposed(kind), between=kind.between, own={}
    )
    for (op, half, parts, last), kind in OF_CONVOLUTIONS.items()
    if op == "convolution"
}


def _of_cells(ordinary: Variant) -> Variant:
    why = f"{ordinary.why}, pixels of a cell as channels"
    return replace(ordinary, launcher="run_convolution_cells", why=why)


CELLS = _of_cells(CONVOLUTION)
OF_CELLS = {
    (half, parts): _of_cells(kind)
    for (op, half, parts, last), kind in OF_CONVOLUTIONS.items()
    if op == "convolution" and not last
}
WINDOWED = {
    key: replace(found, launcher="run_convolution_windows", folds="", between=((), ()), own={})
    for key, found in OF_CONVOLUTIONS.items()
    if found.launcher == CONVOLUTION.launcher
}
ATTENTION = Variant(
    "attention",
    "run_attention",
    _attended,
    lambda n: (*(f.tensor for f in sides(n)), *scores(n).tensors),
    lambda _: (False,),
    {False: ()},
    {False: (1, 3, 3)},
    TILE_RATE,
    SPLIT.numeric,
    "one pass over keys and values, float32 in two float16 parts",
    folds="",
    widths=lambda n: (width(n),),
    mma_sync=MMA_SYNC_TILES,
)


def variant_of(n: Node, *, inline: bool = False) -> Variant:
    """The family of a product node's kernels; inline: of those that pack nothing in memory."""
    if n.op in CONVOLUTIONS:
        spec = spec_of(n, ConvSpec)
        if spec.cell:
            return OF_CELLS[is_half(n), parts(n)]
        every = WINDOWED if spec.pool_window else OF_CONVOLUTIONS
        if n.op == "transposed_convolution" and max(spec.stride) == 1:
            every = OF_STRIDE_1
        return every[n.op, is_half(n), parts(n), bool(n.order)]
    if n.op == "attention":
        return ATTENTION
    if is_half(n):
        return HALF
    return INLINE if inline else SPLIT
