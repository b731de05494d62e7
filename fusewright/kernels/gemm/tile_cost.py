"""Product node + Target -> which of its tiles ends soonest, where blocks may share some of them.

Tiles that do not fill a wave are cut along their depth: by split-K into equal parts, by stream-K
into pieces of all steps in a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import ceil

from fusewright.fusion.epilogue import NoReduction
from fusewright.ir.graph import Graph, Node, numel
from fusewright.kernels.gemm.diagonal_band import ALL, DiagonalBand
from fusewright.kernels.gemm.split_cost import LastWave, split_k, stream_k
from fusewright.kernels.gemm.tile import NO_SPLIT, DepthSplit, SplitK, StreamK
from fusewright.kernels.gemm.variants import GemmVariant
from fusewright.kernels.tensor_core.anchor import anchor_of
from fusewright.kernels.tensor_core.tile import TileShape
from fusewright.kernels.tensor_core.tile_cost import TileCost
from fusewright.loopnest.nest import Nest
from fusewright.targets.target import Target

# What follows the product of a tile, in steps of its depth: 16 bits stored for each element, more
# bytes, reductions [m: gemm-0028].
LIGHT_ENDING, LARGE_ENDING, REDUCTION_ENDING = 2.8, 6.4, 10.0

# How blocks may share tiles -> cost in steps, and parts, of each way to cut their depth.
CUTS: Mapping[type[SplitK | StreamK], Callable[[LastWave], Iterator[tuple[float, int]]]] = {
    SplitK: split_k,
    StreamK: stream_k,
}


class GemmCost(TileCost[TileShape]):
    """some: what of the product is wanted.  shares: whether blocks may share tiles.  ending: what
    follows a tile's product, in steps of its depth."""

    kind: GemmVariant

    def __init__(
        self,
        product: Node,
        kind: GemmVariant,
        target: Target,
        graph: Graph,
        some: DiagonalBand,
        *,
        shares: bool,
        ending: float,
    ) -> None:
        super().__init__(product, kind, target, graph)
        self.blocks //= kind.cluster
        self.some, self.sharing = some, kind.sharing if shares else None
        self.both_end = 0.0 if kind.rates_have_ending else ending

    def split(self, tile: TileShape) -> DepthSplit:
        """How the tiles share their depth, where that ends sooner."""
        parts = self._last(tile)[1] * self.kind.cluster
        return self.sharing(parts) if self.sharing and parts else NO_SPLIT

    def count(self, tile: TileShape) -> int:
        """Couples of neighbours where clusters work."""
        sides, cluster = (self.rows, self.columns), self.kind.cluster
        sides = sides[::-1] if tile.swap_operands else sides
        high, wide = self.high(tile), tile.width
        beside = ceil(sides[0] / high) % cluster > 0 and ceil(sides[1] / wide) % cluster == 0
        high, wide = (high, wide * cluster) if beside else (high * cluster, wide)
        down, across = ceil(sides[0] / high), ceil(sides[1] / wide)
        if self.some == ALL:
            return self.batches * down * across
        some = self.some.turned if tile.swap_operands else self.some
        return self.batches * sum(len(some.columns(r, high, wide, across)) for r in range(down))

    def last_wave(self, tile: TileShape) -> float:
        return self._last(tile)[0]

    def ending(self, tile: TileShape) -> float:
        if not tile.is_pingpong:
            return self.both_end
        return self.kind.pingpong[tile.width, tile.swap_operands].ending * self.both_end

    def _last(self, tile: TileShape) -> tuple[float, int]:
        """What share of a wave the tiles take that do not fill one, and in how many parts they are
        cut, or may be. The device text makes the same choice, for the sizes of a call."""
        rest = self.count(tile) % self.blocks
        if rest == 0 or self.sharing is None or tile.is_pingpong:
            return float(rest > 0), 0
        sums = self.high(tile) * tile.width * 4
        last = LastWave(rest, self.steps, self.blocks, sums)
        cost, parts = min([(float(self.steps), 0), *CUTS[self.sharing](last)])
        return cost / self.steps, parts


def ending(nest: Nest) -> float:
    """What follows a tile's product, in steps of its depth."""
    product = anchor_of(nest.kernel)
    if nest.kernel.reduction != NoReduction():
        return REDUCTION_ENDING
    tensors = {a.leaf for a in nest.reads.values()} - {product} | set(nest.kernel.outputs)
    large = (n.dtype.itemsize for n in tensors if numel(n.shape) == numel(product.shape))
    return LARGE_ENDING if sum(large) > 2 else LIGHT_ENDING
