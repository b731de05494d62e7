"""Variant + contraction, and what is folded behind it -> the tiles that may compute it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from fusewright.fusion.epilogue import AllColumns, NoReduction, Reduction, Segment
from fusewright.ir.graph import Node
from fusewright.ir.specs import ConvSpec, spec_of
from fusewright.kernels.tensor_core.support import supports
from fusewright.kernels.tensor_core.tile import Tile
from fusewright.kernels.tensor_core.variant import SPLIT_ROWS, WIDTHS, Variant
from fusewright.targets.target import Target

WIDE_SEGMENTS = (128, 256)  # only where the columns are the packed side


def tiles(kind: Variant, product: Node, reduction: Reduction) -> tuple[Tile, ...]:
    """The tiles that can hold what is folded behind a product."""
    bare = isinstance(reduction, NoReduction)
    every = (
        Tile(width, swapped, summed=isinstance(reduction, AllColumns))
        for swapped in kind.sides(product)
        for width in (*kind.widths(product), *(kind.between[swapped] if bare else ()))
    )
    return tuple(t for t in every if _holds(kind, product, t, reduction))


def pingpong_tiles(
    kind: Variant, product: Node, reduction: Reduction, target: Target
) -> tuple[Tile, ...]:
    """The same of tiles that one group of a block's warps has alone."""
    kind, bare = kind.on(target.arch), isinstance(reduction, NoReduction)
    found = (Tile(width, swapped, own=True) for width, swapped in kind.own)
    some = (t for t in found if kind.pingpong_fits(product, t, bare))
    return tuple(t for t in some if _holds(kind, product, t, reduction))


def multi_image_tiles(
    kind: Variant, product: Node, reduction: Reduction, target: Target
) -> tuple[Tile, ...]:
    """The same of convolutions whose tiles may have pixels of two images."""
    if not kind.multi_image or not isinstance(reduction, NoReduction):
        return ()
    if not supports(target.arch, "conv.multi_image"):
        return ()
    pixels, every = kind.matrix(product).columns, tiles(kind, product, reduction)
    assert isinstance(pixels, int), "the pixels of an image are known"
    sides = ((tile, SPLIT_ROWS if tile.swapped else tile.width) for tile in every)
    return tuple(replace(tile, joined=True) for tile, side in sides if pixels >= side)


def unpacked_tiles(kind: Variant, product: Node, reduction: Reduction) -> tuple[Tile, ...]:
    """The same for a kernel that splits both factors; none if one does not lie row by row.

    Beside the sums of the widest tile, no register is free for folds.
    """
    if kind.unpacked is None or not kind.unpacked.reads(product):
        return ()
    widest, bare = max(WIDTHS), isinstance(reduction, NoReduction)
    every = (t for t in tiles(kind, product, reduction) if t.width in WIDTHS)
    fitting = [t for t in every if bare or t.width < widest]
    return tuple(replace(tile, inline=True) for tile in fitting)


def _holds(kind: Variant, product: Node, tile: Tile, reduction: Reduction) -> bool:
    """Whether a tile has all that a fold takes."""
    if not isinstance(reduction, Segment):
        return True
    return HOLDS[kind.folds](kind, product, tile, reduction.columns)


def _holds_columns(_: Variant, __: Node, tile: Tile, segment: int) -> bool:
    if segment in WIDE_SEGMENTS:
        return not tile.swapped and tile.width % segment == 0
    return 64 % segment == 0


def _holds_channels(kind: Variant, product: Node, tile: Tile, segment: int) -> bool:
    """Segments that no piece of a tile holds need all channels in one tile."""
    images, channels, *_ = product.shape
    whole = kind.matrix(product).batches == images
    if not (tile.swapped and whole and spec_of(product, ConvSpec).folds_channels):
        return False
    if segment in WIDE_SEGMENTS or 64 % segment == 0:
        return tile.width % segment == 0
    assert isinstance(channels, int)
    return channels <= tile.width


HOLDS: Mapping[str, Callable[[Variant, Node, Tile, int], bool]] = {
    "columns": _holds_columns,
    "rows": _holds_channels,
    "": lambda *_: False,
}
