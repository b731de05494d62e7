"""Nest of a kernel with a contraction -> what one thread block computes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fusewright.errors import InternalError
from fusewright.kernels.interface import StrategyContext
from fusewright.kernels.tensor_core.diagonal_band import DiagonalBand
from fusewright.kernels.tensor_core.tile import Tile
from fusewright.kernels.tensor_core.tile_cost import access, ending, rank_tiles
from fusewright.kernels.tensor_core.variant import Variant
from fusewright.loopnest.nest import Nest
from fusewright.loopnest.vector_width import vector_width


@dataclass(frozen=True)
class TensorCoreTile:
    """tile: of a thread block.  vector: elements of an access behind the contraction."""

    tile: Tile
    vector: int


def default(
    kind: Variant, nest: Nest, context: StrategyContext, some: DiagonalBand
) -> TensorCoreTile:
    """The tile that is predicted to end first. some: what of the product is wanted."""
    tile = _ranked(kind, nest, context, some, both=False)[0]
    return TensorCoreTile(tile, access(kind, nest, tile, vector_width(nest)))


def neighbours(
    kind: Variant,
    default: TensorCoreTile,
    nest: Nest,
    context: StrategyContext,
    some: DiagonalBand,
) -> Sequence[TensorCoreTile]:
    """The same tile with whole depths, and all others."""
    tiles = [replace(default.tile, parts=0), *_ranked(kind, nest, context, some, both=True)]
    widest = vector_width(nest)
    return [TensorCoreTile(t, access(kind, nest, t, widest)) for t in tiles if t != default.tile]


def _ranked(
    kind: Variant, nest: Nest, context: StrategyContext, some: DiagonalBand, *, both: bool
) -> list[Tile]:
    if not nest.kernel.anchor:
        raise InternalError("A tile is a contraction's.")
    return rank_tiles(
        kind,
        nest.kernel.anchor,
        nest.kernel.reduction,
        context.target,
        context.graph,
        context.rules,
        some,
        both=both,
        ending=ending(nest),
    )
