"""Nest of a convolution's kernel -> its tile: the one predicted to end first, and the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from fusewright.fusion.epilogue import AllColumns, NoReduction, Reduction
from fusewright.ir.graph import Graph, Node
from fusewright.kernels.conv.geometry import geometry, is_stacked
from fusewright.kernels.conv.tile import ConvTile
from fusewright.kernels.conv.tile_cost import ConvCost
from fusewright.kernels.conv.variants import ConvVariant, variant_of
from fusewright.kernels.interface import StrategyContext
from fusewright.kernels.tensor_core.anchor import access, anchor_of
from fusewright.kernels.tensor_core.support import supports
from fusewright.kernels.tensor_core.tile import TileShape
from fusewright.kernels.tensor_core.tile_options import exists, pingpong_tiles, tiles
from fusewright.kernels.tensor_core.variant import SPLIT_ROWS, WIDTHS
from fusewright.loopnest.nest import Nest
from fusewright.targets.target import Target


def default(nest: Nest, context: StrategyContext) -> ConvTile:
    """The tile that is predicted to end first."""
    return _ranked(nest, context)[0]


def neighbours(default: ConvTile, nest: Nest, context: StrategyContext) -> Sequence[ConvTile]:
    """All other tiles."""
    return [tile for tile in _ranked(nest, context) if tile != default]


def rank_tiles(n: Node, reduction: Reduction, target: Target, graph: Graph) -> list[ConvTile]:
    """The tiles that may be, the fastest first, with accesses of single elements."""
    variant = variant_of(n)
    kind = variant.on(target.arch)
    whole = tiles(variant, n, reduction)
    options = [tile_of(n, shape, reduction) for shape in whole]
    options += _multi_image_tiles(variant, n, reduction, target)
    options += [tile_of(n, shape, reduction) for shape in pingpong_tiles(kind, n, reduction)]
    options = [tile for tile in options if exists(kind, n, tile, target.arch)]
    if is_stacked(n):
        options = [tile for tile in options if tile.swap_operands in kind.stacks]
    return ConvCost(n, kind, target, graph).ranked(options)


def tile_of(
    n: Node,
    shape: TileShape,
    reduction: Reduction,
    images: Literal["single", "multi"] = "single",
) -> ConvTile:
    """The tile of a shape. Two blocks have registers for narrow tiles."""
    narrow = shape.width <= min(WIDTHS) and not shape.is_pingpong
    return ConvTile(
        shape.width,
        shape.swap_operands,
        shape.epilogue_schedule,
        blocks_per_sm=2 if narrow and geometry(n).parts == 1 else 1,
        images=images,
        output="pixel_reduction" if isinstance(reduction, AllColumns) else "pixels",
    )


def _multi_image_tiles(
    kind: ConvVariant, n: Node, reduction: Reduction, target: Target
) -> list[ConvTile]:
    """Those that may have pixels of two images."""
    if not kind.multi_image or not isinstance(reduction, NoReduction):
        return []
    if not supports(target.arch, "conv.multi_image"):
        return []
    pixels, every = kind.matrix(n).columns, tiles(kind, n, reduction)
    assert isinstance(pixels, int), "the pixels of an image are known"
    sides = ((tile, SPLIT_ROWS if tile.swap_operands else tile.width) for tile in every)
    return [tile_of(n, tile, reduction, "multi") for tile, side in sides if pixels >= side]


def _ranked(nest: Nest, context: StrategyContext) -> list[ConvTile]:
    n, reduction = anchor_of(nest.kernel), nest.kernel.reduction
    vector = access(variant_of(n), nest)
    every = rank_tiles(n, reduction, context.target, context.graph)
    return [replace(tile, vector=vector) for tile in every]
