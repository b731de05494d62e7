"""Contraction + Target -> which of its tiles ends soonest, in waves of thread blocks."""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil
from typing import Generic, TypeVar

from fusewright.ir.graph import Graph, Node
from fusewright.kernels.tensor_core.tile import TileShape
from fusewright.kernels.tensor_core.variant import (
    K_SCALE_BLOCK,
    SPLIT_ROWS,
    PingpongTile,
    RatedVariant,
)
from fusewright.targets.target import Target

Tile = TypeVar("Tile", bound=TileShape)


class TileCost(Generic[Tile]):
    """How the tiles of a product go over the thread blocks that run at once.

    A family's own cost says what is otherwise: how tiles are counted, what those of the last wave
    share, what follows a tile, and what it takes beside its product.
    """

    def __init__(self, product: Node, kind: RatedVariant, target: Target, graph: Graph) -> None:
        matrix = kind.matrix(product)
        sizes = (matrix.batches, matrix.rows, matrix.columns, matrix.depth)
        self.batches, self.rows, self.columns, depth = map(graph.hint, sizes)
        self.steps, self.blocks = ceil(depth / K_SCALE_BLOCK), target.machine.processors
        self.kind = kind

    def ranked(self, tiles: Iterable[Tile]) -> list[Tile]:
        """Those first that end soonest."""
        return sorted(tiles, key=self._order)

    def _order(self, tile: Tile) -> tuple[float, int, bool, int]:
        """Least first: the time that all tiles take, then what decides between equal times."""
        count = self.count(tile)
        rounds = self._rounds(tile, count // self.blocks + self.last_wave(tile))
        return self.cost(tile, rounds), -min(count, self.blocks), tile.swap_operands, -tile.width

    def count(self, tile: Tile) -> int:
        """How many tiles there are."""
        return self.count_of(tile, self.batches, self.rows, self.columns)

    def count_of(self, tile: Tile, batches: int, rows: int, columns: int) -> int:
        """How many tiles matrices of such sizes have."""
        tall, wide = (columns, rows) if tile.swap_operands else (rows, columns)
        return batches * ceil(tall / self.high(tile)) * ceil(wide / tile.width)

    def high(self, tile: Tile) -> int:
        """Rows of the split factor in a tile."""
        if tile.is_pingpong:
            return self._pingpong(tile).high
        return self.kind.high.get(tile.width, SPLIT_ROWS)

    def last_wave(self, tile: Tile) -> float:
        """What share of a wave the tiles take that do not fill one."""
        return float(self.count(tile) % self.blocks > 0)

    def ending(self, tile: Tile) -> float:
        """What follows a tile's product, in steps of its depth, beside what rates have within."""
        raise NotImplementedError

    def cost(self, tile: Tile, rounds: float) -> float:
        """What so many rounds take, as elements x 64 k over TFLOP/s."""
        rate = self._pingpong(tile).rate if tile.is_pingpong else self.kind.rate[tile.width]
        return rounds * self.high(tile) * tile.width / rate

    def _rounds(self, tile: Tile, rounds: float) -> float:
        """The same with what follows each product: of two groups that have tiles of their own, one
        hides it behind the other's product, but for the last."""
        end = self.ending(tile) / self.steps
        if not tile.is_pingpong:
            return rounds * (1 + end)
        return (rounds - 1) * max(1.0, (1 + end) / 2) + 1 + end

    def _pingpong(self, tile: Tile) -> PingpongTile:
        return self.kind.pingpong[tile.width, tile.swap_operands]
