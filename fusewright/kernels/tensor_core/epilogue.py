"""Loops of a kernel with a contraction -> Epilogue: which columns its body walks, and why not.

What follows a contraction is computed while a tile is in shared memory. Without reductions, that
works for every tile. A reduction needs its columns, a segment, in one tile. Convolutions reduce
over their channels, which are rows otherwise: a tile then has 128 pixels x `width` channels.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fusewright.fusion.axes import Incompatible, LoopAxes, merge, read_walks, write_walks
from fusewright.fusion.epilogue import AllColumns, Epilogue, NoReduction, Reduction, Segment
from fusewright.ir.graph import Node, Size, numel, size_text
from fusewright.ir.specs import ConvSpec, spec_of
from fusewright.kernels.tensor_core.tile_options import tiles
from fusewright.kernels.tensor_core.variant import WIDTHS, Variant

# Reductions over channels that were faster in a convolution's kernel than in one of their own
# (H200) [m: conv-0043, conv-0047, conv-0048, conv-0049, conv-0050]: of so many channels and pixels
# at least; if what was reduced is stored, too, of so many channels at most, and of a power of two.
LEAST_REDUCED, LEAST_PIXELS, MOST_STORED = 16, 128, 128


def epilogue(
    kind: Variant, members: Sequence[Node], found: LoopAxes, outputs: Sequence[Node]
) -> Epilogue:
    """The rows and columns of a kernel that has a contraction; or raise Incompatible."""
    (product,) = (m for m in members if m.row.kind == "contraction")
    reductions = any(m.row.kind == "reduction" for m in members)
    summed = reductions and _sums(kind, members, found, outputs)
    turned = reductions and not summed and kind.reduces_over == "rows"
    leading, last = _axes(kind, product, found, turned=turned)
    axes = [*leading, *last]
    if found.rows | found.inner != set(axes):
        raise Incompatible("a value has more elements than the contraction")
    columns = _reduced(last, found) if reductions else last
    reduction: Reduction = NoReduction()
    if reductions:
        size = numel(found.sizes[a] for a in columns)
        reduction = AllColumns() if summed else _segment(size)
    reads, writes = read_walks(found).values(), write_walks(found, outputs).values()
    if any(walk.limits and walk.tensor.op != "constant" for walk in reads):
        raise Incompatible("a padded tensor is read by a kernel without a contraction")
    steps = [each for walk in (*reads, *writes) for each in walk.all_strides]
    if len(merge(columns, steps, found.sizes)) > 1:
        raise Incompatible("a tensor does not lie evenly along the contraction's columns")
    if columns and not turned and any(w.strides.get(columns[-1], 1) != 1 for w in writes):
        raise Incompatible("a result does not lie row by row as the contraction does")
    if turned and isinstance(reduction, Segment):
        _check_worth(kind, product, reduction.columns, outputs)
    if summed:
        return Epilogue(tuple(leading), tuple(columns), reduction)
    if not tiles(kind, product, reduction):
        size = reduction.columns if isinstance(reduction, Segment) else 0
        raise Incompatible(f"a row of {size} does not fit the columns of a tile")
    return Epilogue(tuple(axes[: len(axes) - len(columns)]), tuple(columns), reduction)


def _sums(kind: Variant, members: Sequence[Node], found: LoopAxes, outputs: Sequence[Node]) -> bool:
    """Whether the only reduction goes over all pixels of a convolution, which are not stored."""
    (product,) = (m for m in members if m.row.kind == "contraction")
    more = [m for m in members if m.row.kind == "reduction"]
    if not kind.reduces_all_columns:
        return False
    # Of those in full float32, channels are not reduced, but pixels may be.
    spec = spec_of(product, ConvSpec)
    if not (spec.reduces_channels or spec.numerics == "float32"):
        return False
    pixels = {a for d in found.dims[id(product)][2:] for a in d}
    many = numel(product.shape[2:])
    one = len(more) == 1 and more[0].row.joins_across_tiles and more[0].dtype is torch.float32
    if not one or found.inner != pixels or not isinstance(many, int) or many < LEAST_PIXELS:
        return False
    return not any(pixels & {a for d in found.dims[id(n)] for a in d} for n in outputs)


def _check_worth(kind: Variant, product: Node, segment: int, outputs: Sequence[Node]) -> None:
    """Raise Incompatible where reductions over channels take longer in a convolution's kernel."""
    if segment < LEAST_REDUCED:
        raise Incompatible(f"reductions of {segment} channels leave most of a tile's lanes empty")
    pixels = kind.matrix(product).columns
    if isinstance(pixels, int) and pixels < LEAST_PIXELS:
        raise Incompatible("an image's pixels fill too little of a tile whose channels are reduced")
    stored = any(numel(o.shape) == numel(product.shape) for o in outputs)
    if stored and (segment > MOST_STORED or segment & (segment - 1)):
        raise Incompatible(f"{segment} channels that are reduced and stored again take longer here")


def _axes(
    kind: Variant, product: Node, found: LoopAxes, *, turned: bool
) -> tuple[list[int], tuple[int, ...]]:
    """The axes of a product's batches and rows, and those of its columns; turned: of an image and
    its pixels, and those of its channels."""
    dims = found.dims[id(product)]
    dims = tuple(dims[d] for d in product.order or range(len(dims)))
    split = len(dims) - kind.matrix(product).column_dims
    if turned:
        dims, split = (dims[0], *dims[2:], dims[1]), len(dims) - 1
    return [a for d in dims[:split] for a in d], tuple(a for d in dims[split:] for a in d)


def _reduced(last: tuple[int, ...], found: LoopAxes) -> tuple[int, ...]:
    """The product's trailing axes, if they are those that the reductions run over."""
    columns = last[len(last) - len(found.inner) :]
    if set(columns) != found.inner or (found.positions or columns) != columns:
        raise Incompatible("its reductions run over other elements than neighbouring columns")
    return columns


def _segment(size: Size) -> Segment:
    if not isinstance(size, int) or size > max(WIDTHS):
        raise Incompatible(f"a row of {size_text(size)} does not fit a tile of {max(WIDTHS)}")
    return Segment(size)
