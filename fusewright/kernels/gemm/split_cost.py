"""Tiles that do not fill a wave -> what it costs that blocks share their depth, and in what parts.

Split-K cuts each of these tiles into equal parts, stream-K all of their steps, in a row, into
pieces. A step is 64 k of a tile.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple


class AddingCost(NamedTuple):
    """What adding up the parts of a tile takes, in tenths of a step of its depth: once, and for
    each part.
    """

    once: int
    part: int

    def steps(self, parts: int) -> float:
        return (self.once + self.part * parts) / 10


# Scratch memory for parts, and the least steps of one, which the device text has, too
# [m: gemm-0040, gemm-0041, gemm-0042, gemm-0043].
MOST_PARTS_BYTES, PART_STEPS = 32 << 20, 4
# What adding up takes then, a prediction. Launchers of stream-K are given its numbers; those of
# split-K stand in the device text, too.
SPLIT_K, STREAM_K = AddingCost(30, 6), AddingCost(120, 18)


@dataclass(frozen=True)
class LastWave:
    """tiles: so many that they do not fill a wave.  steps: of each.  blocks: that run at once, or
    clusters.  tile_bytes: of the sums of a tile."""

    tiles: int
    steps: int
    blocks: int
    tile_bytes: int


def split_k(last: LastWave) -> Iterator[tuple[float, int]]:
    """Cost in steps, and parts: `plan_split_k` cuts each tile into equal parts."""
    room = MOST_PARTS_BYTES // last.tile_bytes
    for count in range(2, min(last.steps // PART_STEPS, room // last.tiles) + 1):
        length = ceil(last.steps / count)
        parts = ceil(last.steps / length)
        rounds = ceil(last.tiles * parts / last.blocks)
        yield rounds * (length + SPLIT_K.steps(parts)), last.tiles * parts


def stream_k(last: LastWave) -> Iterator[tuple[float, int]]:
    """The same: `plan_stream_k` cuts all steps, in a row, one piece a cluster."""
    steps, total = last.steps, last.tiles * last.steps
    for length in range(max(PART_STEPS, ceil(total / last.blocks)), steps):
        parts = (steps - 2) // length + 2 if steps % length else steps // length
        yield length + STREAM_K.steps(parts), ceil(total / length) + last.tiles
