"""Product node and what is folded behind it -> the tiles that kernels may compute it in.

result = rows x columns of the product, computed tile by tile: 128 rows of the factor that is
split x `width` rows of the factor that is packed. Factors of 16 bits are neither: the same
words tell which one has 128 rows in a tile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from fusewright.fusion.epilogue import AllColumns, NoReduction, Reduction, Segment
from fusewright.ir.graph import Node
from fusewright.ir.specs import ConvSpec, spec_of
from fusewright.kernels.conv.geometry import CONVOLUTIONS, geometry
from fusewright.kernels.gemm.match import operands
from fusewright.kernels.tensor_core.support import supports
from fusewright.kernels.tensor_core.variant import (
    CONVOLUTION,
    INLINE,
    SPLIT_ROWS,
    TILE_RATE,
    variant_of,
)
from fusewright.targets.target import Target

WIDTHS = tuple(TILE_RATE)
WIDE_SEGMENTS = (128, 256)  # only where the columns are the packed side


@dataclass(frozen=True)
class Tile:
    """width: rows of the packed factor in one tile.  swapped: the left factor is the packed one.

    inline: no factor is packed in memory; both are split on their way to the tensor cores.
    parts: for how many parts of tiles there is room, where thread blocks share the depth of those
    tiles that do not fill a wave; 0 if they do not.  summed: each tile leaves a part of a fold over
    all columns, and a kernel behind it joins them.  joined: columns go on from image to image.
    own: half of a block's warps have it alone, and multiply while the others hand theirs out.
    """

    width: int
    swapped: bool
    inline: bool = False
    parts: int = 0
    summed: bool = False
    joined: bool = False
    own: bool = False


def tiles(product: Node, reduction: Reduction) -> tuple[Tile, ...]:
    """The tiles that can hold what is folded behind a product."""
    kind, bare = variant_of(product), isinstance(reduction, NoReduction)
    every = (
        Tile(width, swapped, summed=isinstance(reduction, AllColumns))
        for swapped in kind.sides(product)
        for width in (*kind.widths(product), *(kind.between[swapped] if bare else ()))
    )
    return tuple(t for t in every if _holds(product, t, reduction))


def pingpong_tiles(product: Node, reduction: Reduction, target: Target) -> tuple[Tile, ...]:
    """The same of tiles that one group of a block's warps has alone.

    Beside the sums of more than 128 columns, no register is free for folds. `ordered` rows of the
    skeleton come in boxes of 32; others, where neighbours are rows, in boxes of 64.
    """
    kind, bare = variant_of(product).on(target.arch), isinstance(reduction, NoReduction)
    found = tuple(Tile(width, swapped, own=True) for width, swapped in kind.own)
    if product.op in CONVOLUTIONS:
        return found if bare else ()
    narrow = min(kind.own, default=(0, False))[0]
    some = (t for t in found if bare or t.width == narrow)
    some = (t for t in some if t.width % 64 == 0 or not operands(product)[1].turned)
    return tuple(t for t in some if _holds(product, t, reduction))


def joined_tiles(product: Node, reduction: Reduction, target: Target) -> tuple[Tile, ...]:
    """The same of convolutions whose tiles may have pixels of two images."""
    kind = variant_of(product)
    if kind.launcher != CONVOLUTION.launcher or not isinstance(reduction, NoReduction):
        return ()
    if not supports(target.arch, "conv.multi_image"):
        return ()
    pixels, every = geometry(product).pixels, tiles(product, reduction)
    sides = ((tile, SPLIT_ROWS if tile.swapped else tile.width) for tile in every)
    return tuple(replace(tile, joined=True) for tile, side in sides if pixels >= side)


def inline_tiles(product: Node, reduction: Reduction) -> tuple[Tile, ...]:
    """The same for a kernel that splits both factors; none if one does not lie row by row.

    Beside the sums of the widest tile, no register is free for folds.
    """
    if variant_of(product, inline=True) is not INLINE or not all(
        f.splits for f in operands(product)
    ):
        return ()
    widest, bare = max(WIDTHS), isinstance(reduction, NoReduction)
    every = (t for t in tiles(product, reduction) if t.width in WIDTHS)
    fitting = [t for t in every if bare or t.width < widest]
    return tuple(replace(tile, inline=True) for tile in fitting)


def _holds(product: Node, tile: Tile, reduction: Reduction) -> bool:
    """Whether a tile has all that a fold takes."""
    if not isinstance(reduction, Segment):
        return True
    return HOLDS[variant_of(product).folds](product, tile, reduction.columns)


def _holds_columns(_: object, tile: Tile, segment: int) -> bool:
    if segment in WIDE_SEGMENTS:
        return not tile.swapped and tile.width % segment == 0
    return 64 % segment == 0


def _holds_channels(product: Node, tile: Tile, segment: int) -> bool:
    """Segments that no piece of a tile holds need all channels in one tile."""
    images, channels, *_ = product.shape
    whole = variant_of(product).matrix(product).batches == images
    if not (tile.swapped and whole and spec_of(product, ConvSpec).folds_channels):
        return False
    if segment in WIDE_SEGMENTS or 64 % segment == 0:
        return tile.width % segment == 0
    assert isinstance(channels, int)
    return channels <= tile.width


HOLDS: Mapping[str, Callable[[Node, Tile, int], bool]] = {
    "columns": _holds_columns,
    "rows": _holds_channels,
    "": lambda *_: False,
}
