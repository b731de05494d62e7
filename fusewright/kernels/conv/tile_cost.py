"""Convolution node + Target -> which of its tiles ends soonest."""

from __future__ import annotations

from fusewright.ir.graph import Graph, Node
from fusewright.kernels.conv.geometry import geometry
from fusewright.kernels.conv.tile import ConvTile
from fusewright.kernels.conv.variants import ConvVariant
from fusewright.kernels.tensor_core.tile_cost import TileCost
from fusewright.kernels.tensor_core.variant import SPLIT_ROWS
from fusewright.targets.target import Target

# What a tile with pixels of two images takes longer, as so many elements x 64 k over TFLOP/s, and
# where two blocks share a processor, so that one is at work meanwhile [m: conv-0036, conv-0037,
# conv-0038].
CROSSING, SHARED_CROSSING, SHARED_WIDTH = 213, 85, 64


class ConvCost(TileCost[ConvTile]):
    kind: ConvVariant

    def __init__(self, product: Node, kind: ConvVariant, target: Target, graph: Graph) -> None:
        super().__init__(product, kind, target, graph)
        self.products = geometry(product).products  # of one image

    def count(self, tile: ConvTile) -> int:
        if tile.images == "single":
            return super().count(tile)
        columns = self.columns * (self.batches // self.products)
        return self.count_of(tile, self.products, self.rows, columns)

    def ending(self, tile: ConvTile) -> float:
        if not tile.is_pingpong:
            return 0.0
        return self.kind.pingpong[tile.width, tile.swap_operands].ending_steps

    def cost(self, tile: ConvTile, rounds: float) -> float:
        products = super().cost(tile, rounds)
        if tile.images == "single":
            return products
        share = (SPLIT_ROWS if tile.swap_operands else tile.width) / self.columns
        each = SHARED_CROSSING if tile.width <= SHARED_WIDTH else CROSSING
        return products + max(1, rounds * share) * each / self.steps
