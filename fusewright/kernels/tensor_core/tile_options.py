"""Variant + contraction, and what is reduced behind it -> the tiles that may compute it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fusewright.fusion.epilogue import NoReduction, Reduction, Segment
from fusewright.ir.graph import Node
from fusewright.ir.specs import ConvSpec, spec_of
from fusewright.kernels.tensor_core.support import tile_fits
from fusewright.kernels.tensor_core.tile import TileShape
from fusewright.kernels.tensor_core.variant import RatedVariant, Variant
from fusewright.targets.arch import Arch

WIDE_SEGMENTS = (128, 256)  # only where the columns are the packed side


def tiles(kind: Variant, product: Node, reduction: Reduction) -> tuple[TileShape, ...]:
    """The tiles that can hold what is reduced behind a product."""
    bare = isinstance(reduction, NoReduction)
    every = (
        TileShape(width, swapped)
        for swapped in kind.sides(product)
        for width in (*kind.widths(product), *(kind.between[swapped] if bare else ()))
    )
    return tuple(t for t in every if _holds(kind, product, t, reduction))


def pingpong_tiles(
    kind: RatedVariant, product: Node, reduction: Reduction
) -> tuple[TileShape, ...]:
    """The same of tiles that one group of a block's warps has alone."""
    bare = isinstance(reduction, NoReduction)
    found = (TileShape(width, swapped, "pingpong") for width, swapped in kind.pingpong)
    some = (t for t in found if kind.pingpong_fits(product, t, bare))
    return tuple(t for t in some if _holds(kind, product, t, reduction))


def exists(kind: RatedVariant, product: Node, tile: TileShape, arch: Arch) -> bool:
    """Whether the kernels of an architecture, whose variant `kind` is, have the tile, and its
    blocks the room for it."""
    if tile.is_pingpong:
        return (tile.width, tile.swap_operands) in kind.pingpong
    widths = (*kind.widths(product), *kind.between[tile.swap_operands])
    return tile.width in widths and tile_fits(arch, kind.kernel, tile.width)


def _holds(kind: Variant, product: Node, tile: TileShape, reduction: Reduction) -> bool:
    """Whether a tile has all that a reduction takes."""
    if not isinstance(reduction, Segment):
        return True
    return kind.reduces_over is not None and HOLDS[kind.reduces_over](
        kind, product, tile, reduction.columns
    )


def _holds_columns(_: Variant, __: Node, tile: TileShape, segment: int) -> bool:
    if segment in WIDE_SEGMENTS:
        return not tile.swap_operands and tile.width % segment == 0
    return 64 % segment == 0


def _holds_channels(kind: Variant, product: Node, tile: TileShape, segment: int) -> bool:
    """Segments that no piece of a tile holds need all channels in one tile."""
    images, channels, *_ = product.shape
    whole = kind.matrix(product).batches == images
    if not (tile.swap_operands and whole and spec_of(product, ConvSpec).reduces_channels):
        return False
    if segment in WIDE_SEGMENTS or 64 % segment == 0:
        return tile.width % segment == 0
    assert isinstance(channels, int)
    return channels <= tile.width


HOLDS: Mapping[str, Callable[[Variant, Node, TileShape, int], bool]] = {
    "columns": _holds_columns,
    "rows": _holds_channels,
}
