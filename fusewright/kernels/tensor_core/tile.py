"""Loops of a kernel with a product -> Epilogue: which columns its body walks, and its tiles.

    result = rows x columns of the product, computed tile by tile: 128 rows of the factor that is
    split x `width` rows of the factor that is packed. Factors of 16 bits are neither: the same
    words tell which one has 128 rows in a tile.

What follows a product is computed while a tile is in shared memory. Without folds, that works for
every tile. A fold needs its columns, a segment, in one tile. Convolutions fold over their channels,
which are rows otherwise: a tile then has 128 pixels x `width` channels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from fusewright.fusion.axes import Incompatible, LoopAxes, merge, walks
from fusewright.fusion.epilogue import AllColumns, Epilogue, NoReduction, Reduction, Segment
from fusewright.ir.graph import Node, Size, numel, size_text
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


# Folds over channels that were faster in a convolution's kernel than in one of their own (H200): of
# so many channels and pixels at least; if what was folded is stored, too, of so many channels at
# most, and of a power of two.
LEAST_FOLDED, LEAST_PIXELS, MOST_STORED = 16, 128, 128


def epilogue(members: Sequence[Node], found: LoopAxes, outputs: Sequence[Node]) -> Epilogue:
    """The rows and columns of a kernel whose members include a product; or raise Incompatible."""
    (product,) = (m for m in members if m.row.kind == "product")
    folds = any(m.row.kind == "fold" for m in members)
    summed = folds and _sums(members, found, outputs)
    turned = folds and not summed and variant_of(product).folds == "rows"
    leading, last = _axes(product, found, turned=turned)
    axes = [*leading, *last]
    if found.rows | found.inner != set(axes):
        raise Incompatible("a value has more elements than the product")
    columns = _folded(last, found) if folds else last
    reduction: Reduction = NoReduction()
    if folds:
        size = numel(found.sizes[a] for a in columns)
        reduction = AllColumns() if summed else _segment(size)
    tensors = walks(found, outputs)
    if any(walk.limits and walk.tensor.op != "constant" for walk in tensors.values()):
        raise Incompatible("a padded tensor is read by a kernel without a product")
    steps = [each for walk in tensors.values() for each in walk.all_strides]
    if len(merge(columns, steps, found.sizes)) > 1:
        raise Incompatible("a tensor does not lie evenly along the product's columns")
    for (_, k), walk in tensors.items():
        if k < 0 and columns and not turned and walk.strides.get(columns[-1], 1) != 1:
            raise Incompatible("a result does not lie row by row as the product does")
    if turned and isinstance(reduction, Segment):
        _check_worth(product, reduction.columns, outputs)
    if summed:
        return Epilogue(tuple(leading), tuple(columns), reduction)
    if not tiles(product, reduction):
        size = reduction.columns if isinstance(reduction, Segment) else 0
        raise Incompatible(f"a row of {size} does not fit the columns of a tile")
    return Epilogue(tuple(axes[: len(axes) - len(columns)]), tuple(columns), reduction)


def _sums(members: Sequence[Node], found: LoopAxes, outputs: Sequence[Node]) -> bool:
    """Whether the only fold goes over all pixels of a convolution, which are not stored."""
    (product,) = (m for m in members if m.row.kind == "product")
    more = [m for m in members if m.row.kind == "fold"]
    if variant_of(product).folds != "rows":
        return False
    # Of those in full float32, channels are not folded, but pixels may be.
    spec = spec_of(product, ConvSpec)
    if not (spec.folds_channels or spec.numerics == "float32") or spec.cell:
        return False
    pixels = {a for d in found.dims[id(product)][2:] for a in d}
    many = numel(product.shape[2:])
    one = len(more) == 1 and more[0].row.joins_across_tiles and more[0].dtype is torch.float32
    if not one or found.inner != pixels or not isinstance(many, int) or many < LEAST_PIXELS:
        return False
    return not any(pixels & {a for d in found.dims[id(n)] for a in d} for n in outputs)


def _check_worth(product: Node, segment: int, outputs: Sequence[Node]) -> None:
    """Raise Incompatible where folds over a convolution's channels take longer in its kernel."""
    if segment < LEAST_FOLDED:
        raise Incompatible(f"folds of {segment} channels leave most of a tile's lanes empty")
    pixels = variant_of(product).matrix(product).columns
    if isinstance(pixels, int) and pixels < LEAST_PIXELS:
        raise Incompatible("an image's pixels fill too little of a tile whose channels are folded")
    stored = any(numel(o.shape) == numel(product.shape) for o in outputs)
    if stored and (segment > MOST_STORED or segment & (segment - 1)):
        raise Incompatible(f"{segment} channels that are folded and stored again take longer here")


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


def _axes(product: Node, found: LoopAxes, *, turned: bool) -> tuple[list[int], tuple[int, ...]]:
    """The axes of a product's batches and rows, and those of its columns; turned: of an image and
    its pixels, and those of its channels."""
    dims = found.dims[id(product)]
    dims = tuple(dims[d] for d in product.order or range(len(dims)))
    split = len(dims) - variant_of(product).matrix(product).column_dims
    if turned:
        dims, split = (dims[0], *dims[2:], dims[1]), len(dims) - 1
    return [a for d in dims[:split] for a in d], tuple(a for d in dims[split:] for a in d)


def _folded(last: tuple[int, ...], found: LoopAxes) -> tuple[int, ...]:
    """The product's trailing axes, if they are those that the folds run over."""
    columns = last[len(last) - len(found.inner) :]
    if set(columns) != found.inner or (found.positions or columns) != columns:
        raise Incompatible("its folds run over other elements than neighbouring columns")
    return columns


def _segment(size: Size) -> Segment:
    if not isinstance(size, int) or size > max(WIDTHS):
        raise Incompatible(f"a row of {size_text(size)} does not fit a tile of {max(WIDTHS)}")
    return Segment(size)
