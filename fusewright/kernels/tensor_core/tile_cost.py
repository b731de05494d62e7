"""Product node + Target -> its tiles, those first that end soonest in waves of thread blocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import ceil, gcd

from fusewright.fusion.epilogue import NoReduction, Reduction, Segment
from fusewright.ir.graph import BatchSize, Graph, Node, numel
from fusewright.kernels.tensor_core.diagonal_band import ALL, DiagonalBand
from fusewright.kernels.tensor_core.support import supports, tile_fits
from fusewright.kernels.tensor_core.tile import Tile
from fusewright.kernels.tensor_core.tile_options import (
    multi_image_tiles,
    pingpong_tiles,
    tiles,
    unpacked_tiles,
)
from fusewright.kernels.tensor_core.variant import (
    SPLIT_ROWS,
    STEP,
    AddingCost,
    PingpongTile,
    Variant,
)
from fusewright.loopnest.nest import Nest
from fusewright.targets.arch import Arch
from fusewright.targets.target import Target

# Sharing the depth of a tile: scratch memory for it, and the least steps of a part, which the
# device text has, too.
MOST_PARTS_BYTES, PART_STEPS = 32 << 20, 4
# What adding up takes then, a prediction. Launchers of stream-K are given its numbers; those of
# split-K stand in the device text, too.
SPLIT_K, STREAM_K = AddingCost(30, 6), AddingCost(120, 18)
# What a tile with pixels of two images takes longer, as so many elements x 64 k over TFLOP/s, and
# where two blocks share a processor, so that one is at work meanwhile [m: conv-0036, conv-0037,
# conv-0038].
CROSSING, SHARED_CROSSING, SHARED_WIDTH = 213, 85, 64
# What follows the product of a tile, in steps of its depth: 16 bits stored for each element, more
# bytes, folds [m: gemm-0028].
LIGHT_ENDING, LARGE_ENDING, FOLDED_ENDING = 2.8, 6.4, 10.0
INLINE_RULES = frozenset({"no-prepack", "no-workspace"})


def rank_tiles(
    variant: Variant,
    product: Node,
    reduction: Reduction,
    target: Target,
    graph: Graph,
    rules: frozenset[str] = frozenset(),
    some: DiagonalBand = ALL,
    *,
    both: bool = False,
    ending: float = LIGHT_ENDING,
) -> list[Tile]:
    """The tiles that may be, the fastest first. some: what of the product is wanted.

    The smaller factor is packed, if it may be; both: the other one, too. Where nothing is packed,
    the waves decide which factor has 128 rows in a tile, too, and of one wave the busiest: it
    shares out the reading. ending: what follows a tile's product, in steps of its depth.
    """
    inline = supports(target.arch, "gemm.unpacked") and bool(rules & INLINE_RULES)
    across = unpacked_tiles(variant, product, reduction) if inline else ()
    options = across or (
        *tiles(variant, product, reduction),
        *multi_image_tiles(variant, product, reduction, target),
    )
    if some == ALL:
        options += pingpong_tiles(variant, product, reduction, target)
    kind = (variant.for_tile(across[0]) if across else variant).on(target.arch)
    options = tuple(tile for tile in options if _has(kind, product, tile, target.arch))
    if kind.packed_sizes and not both:
        left, right = map(graph.hint, kind.packed_sizes(product))
        size = {True: left, False: right}
        swapped = min({tile.swapped for tile in options}, key=lambda s: (size[s], s))
        options = tuple(tile for tile in options if tile.swapped == swapped)
    if kind.is_stacked(product):
        options = tuple(tile for tile in options if tile.swapped in kind.stacks)
    shares = bool(kind.packed_sizes) or not rules & INLINE_RULES
    waves = TileCost(product, kind, target, graph, some, shares=shares, ending=ending)
    return [waves.shared(tile) for tile in sorted(options, key=waves.order)]


def _has(kind: Variant, product: Node, tile: Tile, arch: Arch) -> bool:
    """Whether the kernels of an architecture have the tile, and its blocks the room for it."""
    if tile.own:
        return (tile.width, tile.swapped) in kind.own
    widths = (*kind.widths(product), *kind.between[tile.swapped])
    return tile.width in widths and tile_fits(arch, kind.kernel, tile.width)


class TileCost:
    """How the tiles of a product go over the thread blocks that run at once."""

    def __init__(
        self,
        product: Node,
        kind: Variant,
        target: Target,
        graph: Graph,
        some: DiagonalBand,
        *,
        shares: bool,
        ending: float,
    ) -> None:
        matrix = kind.matrix(product)
        sizes = (matrix.batches, matrix.rows, matrix.columns, matrix.depth)
        self.batches, self.rows, self.columns, depth = map(graph.hint, sizes)
        self.steps, self.blocks = ceil(depth / STEP), target.machine.processors // kind.cluster
        self.products = kind.products(product)
        self.some = some
        self.kind, self.shares = kind, shares and kind.adding is not None
        self.ending = ending if kind.ends else 0.0  # else it is in the rate of a tile

    def order(self, tile: Tile) -> tuple[float, int, bool, int]:
        """Least first: the time that all tiles take, then what decides between equal times."""
        count = self._count(tile)
        shares = self.shares and not tile.own
        last = self._last(tile)[0] if shares else count % self.blocks > 0
        rounds = self._rounds(tile, count // self.blocks + last)
        rate = self._own(tile).rate if tile.own else self.kind.rate[tile.width]
        cost = rounds * self._high(tile) * tile.width / rate
        if tile.joined:
            share = (SPLIT_ROWS if tile.swapped else tile.width) / self.columns
            each = SHARED_CROSSING if tile.width == SHARED_WIDTH else CROSSING
            cost += max(1, rounds * share) * each / self.steps
        return cost, -min(count, self.blocks), tile.swapped, -tile.width

    def shared(self, tile: Tile) -> Tile:
        """The tile with room for its parts, if it has any."""
        shares = self.shares and not tile.own
        return replace(tile, parts=self._last(tile)[1] * self.kind.cluster if shares else 0)

    def _own(self, tile: Tile) -> PingpongTile:
        return self.kind.own[tile.width, tile.swapped]

    def _rounds(self, tile: Tile, rounds: float) -> float:
        """The same with what follows each product, unless rates have that within: of two groups
        that have tiles of their own, one hides it behind the other's product, but for the last."""
        if not tile.own:
            return rounds * (1 + self.ending / self.steps)
        end = self._own(tile).end * (self.ending if self.kind.ends else 1) / self.steps
        each = max(1.0, (1 + end) / 2)
        return (rounds - 1) * each + 1 + end

    def _high(self, tile: Tile) -> int:
        """Rows of the split factor in a tile."""
        if tile.own:
            return self._own(tile).high
        return self.kind.high.get(tile.width, SPLIT_ROWS)

    def _count(self, tile: Tile) -> int:
        """How many tiles there are, or couples of neighbours where clusters work."""
        batches, columns = self.batches, self.columns
        if tile.joined:
            batches, columns = self.products, columns * (batches // self.products)
        sides = (columns, self.rows) if tile.swapped else (self.rows, columns)
        high, wide, cluster = self._high(tile), tile.width, self.kind.cluster
        beside = ceil(sides[0] / high) % cluster > 0 and ceil(sides[1] / wide) % cluster == 0
        high, wide = (high, wide * cluster) if beside else (high * cluster, wide)
        down, across = ceil(sides[0] / high), ceil(sides[1] / wide)
        if self.some == ALL:
            return batches * down * across
        some = self.some.turned if tile.swapped else self.some
        return batches * sum(len(some.columns(row, high, wide, across)) for row in range(down))

    def _last(self, tile: Tile) -> tuple[float, int]:
        """What share of a wave the tiles take that do not fill one, and in how many parts they are
        cut, or may be. The device text makes the same choice, for the sizes of a call."""
        rest = self._count(tile) % self.blocks
        if rest == 0:
            return 0.0, 0
        cut = self._equal_parts if self.kind.cluster == 1 else self._ranges
        cost, parts = min([(float(self.steps), 0), *cut(rest, tile)])
        return cost / self.steps, parts

    def _equal_parts(self, rest: int, tile: Tile) -> Iterator[tuple[float, int]]:
        """Cost in steps, and parts, of split-K: `share_depth` cuts each tile into equal parts."""
        room = MOST_PARTS_BYTES // (self._high(tile) * tile.width * 4)
        for count in range(2, min(self.steps // PART_STEPS, room // rest) + 1):
            length = ceil(self.steps / count)
            parts = ceil(self.steps / length)
            rounds = ceil(rest * parts / self.blocks)
            yield rounds * (length + self._adding(parts)), rest * parts

    def _ranges(self, rest: int, _: Tile) -> Iterator[tuple[float, int]]:
        """The same of stream-K: `share_ranges` cuts all steps, in a row, one piece a cluster."""
        steps = self.steps
        for length in range(max(PART_STEPS, ceil(rest * steps / self.blocks)), steps):
            parts = (steps - 2) // length + 2 if steps % length else steps // length
            yield length + self._adding(parts), ceil(rest * steps / length) + rest

    def _adding(self, parts: int) -> float:
        """What adding up the parts of a tile takes, in steps of its depth."""
        cost = self.kind.adding
        assert cost is not None, "somebody shares tiles"
        return (cost.once + cost.part * parts) / 10


def ending(nest: Nest) -> float:
    """What follows a tile's product, in steps of its depth."""
    product = nest.kernel.anchor
    assert product is not None, "a tile is a product's"
    if nest.kernel.reduction != NoReduction():
        return FOLDED_ENDING
    tensors = {a.leaf for a in nest.reads.values()} - {product} | set(nest.kernel.outputs)
    large = (n.dtype.itemsize for n in tensors if numel(n.shape) == numel(product.shape))
    return LARGE_ENDING if sum(large) > 2 else LIGHT_ENDING


def access(kind: Variant, nest: Nest, tile: Tile, widest: int) -> int:
    """Elements per access behind a product, where tensors allow `widest`: eight where lanes have so
    many (`Variant.reads_eights`), four, or one."""
    product, columns = nest.kernel.anchor, nest.columns
    assert product is not None, "a tile is a product's"
    if product.order:  # of a group
        columns = kind.matrix(product).columns
    eights = kind.reads_eights(product, tile)
    most = 8 if eights and nest.kernel.reduction in (NoReduction(), Segment(32), Segment(64)) else 4
    vector = gcd(most, columns.multiple if isinstance(columns, BatchSize) else columns, widest)
    return vector if vector >= 4 else 1
