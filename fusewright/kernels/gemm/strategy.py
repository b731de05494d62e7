"""Nest of a product's kernel -> its tile: the one predicted to end first, and its neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fusewright.fusion.epilogue import NoReduction, Reduction, Segment
from fusewright.ir.graph import Graph, Node, times
from fusewright.kernels.gemm.diagonal_band import ALL, DiagonalBand
from fusewright.kernels.gemm.match import operands
from fusewright.kernels.gemm.prologue import fed
from fusewright.kernels.gemm.tile import NO_SPLIT, GemmTile
from fusewright.kernels.gemm.tile_cost import LIGHT_ENDING, GemmCost, ending
from fusewright.kernels.gemm.variants import BY_PACKING, GEMM_UNPACKED, GemmVariant, variant_of
from fusewright.kernels.interface import StrategyContext
from fusewright.kernels.tensor_core.anchor import LEAST_VECTOR, access, anchor_of
from fusewright.kernels.tensor_core.support import supports
from fusewright.kernels.tensor_core.tile import TileShape
from fusewright.kernels.tensor_core.tile_options import exists, pingpong_tiles, tiles
from fusewright.kernels.tensor_core.variant import WIDTHS
from fusewright.loopnest.nest import Nest
from fusewright.targets.arch import Arch

NO_SCRATCH_RULES = frozenset({"no-prepack", "no-workspace"})


def default(nest: Nest, context: StrategyContext, some: DiagonalBand) -> GemmTile:
    """The tile that is predicted to end first. some: what of the product is wanted."""
    return _ranked(nest, context, some, both=False)[0]


def neighbours(
    default: GemmTile, nest: Nest, context: StrategyContext, some: DiagonalBand
) -> Sequence[GemmTile]:
    """The same tile with whole depths, and all others."""
    every = [replace(default, reduce=NO_SPLIT), *_ranked(nest, context, some, both=True)]
    return [tile for tile in every if tile != default]


def rank_tiles(
    product: Node,
    reduction: Reduction,
    context: StrategyContext,
    some: DiagonalBand = ALL,
    *,
    both: bool = False,
    ending: float = LIGHT_ENDING,
) -> list[GemmTile]:
    """The tiles that may be, the fastest first, with accesses of single elements.

    The smaller factor is packed, if it may be; both: the other one, too. Where nothing is packed,
    the waves decide which factor has 128 rows in a tile, too, and of one wave the busiest: it
    shares out the reading. ending: what follows a tile's product, in steps of its depth.
    """
    arch, graph = context.target.arch, context.graph
    restricted = bool(context.rules & NO_SCRATCH_RULES)
    kind, shapes = _options(product, reduction, arch, restricted=restricted)
    kind = kind.on(arch)
    if some == ALL:
        shapes += pingpong_tiles(kind, product, reduction)
    shapes = tuple(shape for shape in shapes if exists(kind, product, shape, arch))
    if kind.packing == "packed" and not both:
        side = _smaller_side(product, shapes, graph)
        shapes = tuple(shape for shape in shapes if shape.swap_operands == side)
    shares = kind.packing == "packed" or not restricted
    cost = GemmCost(product, kind, context.target, graph, some, shares=shares, ending=ending)
    return [
        GemmTile(
            shape.width,
            shape.swap_operands,
            shape.epilogue_schedule,
            packing=kind.packing,
            reduce=cost.split(shape),
        )
        for shape in cost.ranked(shapes)
    ]


def _options(
    product: Node, reduction: Reduction, arch: Arch, *, restricted: bool
) -> tuple[GemmVariant, tuple[TileShape, ...]]:
    """The variant and the tiles of its kernels; that which packs nothing where scratch memory is
    restricted, if it can hold what follows."""
    kind = variant_of(product)
    if restricted and kind.packing == "packed" and supports(arch, "gemm.unpacked"):
        unpacked = _unpacked_tiles(product, reduction)
        if unpacked:
            return GEMM_UNPACKED, unpacked
    return kind, tiles(kind, product, reduction)


def _unpacked_tiles(product: Node, reduction: Reduction) -> tuple[TileShape, ...]:
    """None if a factor does not lie row by row. Beside the sums of the widest tile, no register is
    free for reductions."""
    if not all(f.splits for f in operands(product)):
        return ()
    widest, bare = max(WIDTHS), isinstance(reduction, NoReduction)
    every = tiles(GEMM_UNPACKED, product, reduction)
    return tuple(t for t in every if bare or t.width < widest)


def _smaller_side(product: Node, shapes: Sequence[TileShape], graph: Graph) -> bool:
    """With which side the factor that is packed is the smaller one."""

    def packed_elements(swap_operands: bool) -> int:
        both = fed(product, "packed", swap_operands=swap_operands)
        (packed,) = (f for f, form in both if form == "packed hi+lo")
        return graph.hint(times(packed.batches, times(packed.rows, packed.depth)))

    return min({shape.swap_operands for shape in shapes}, key=lambda s: (packed_elements(s), s))


def _ranked(
    nest: Nest, context: StrategyContext, some: DiagonalBand, *, both: bool
) -> list[GemmTile]:
    product, reduction = anchor_of(nest.kernel), nest.kernel.reduction
    some_tiles = rank_tiles(product, reduction, context, some, both=both, ending=ending(nest))
    return [replace(tile, vector=_access(nest, tile)) for tile in some_tiles]


def _access(nest: Nest, tile: GemmTile) -> int:
    """How many elements an access has: eight where lanes have so many."""
    kind, n = BY_PACKING[tile.packing], anchor_of(nest.kernel)
    reductions = nest.kernel.reduction in (NoReduction(), Segment(32), Segment(64))
    return access(kind, nest, 8 if reductions and kind.reads_eights(n, tile) else LEAST_VECTOR)
