"""Attention node -> Variant: its kernels, and what every stage asks about them."""

from __future__ import annotations

from fusewright.ir.graph import Node, numel
from fusewright.kernels.attention import launch
from fusewright.kernels.attention.match import scores, sides, width
from fusewright.kernels.tensor_core.variant import (
    FULL_FLOAT32,
    MMA_SYNC_TILES,
    TILE_RATE,
    GemmShape,
    Variant,
)


def _attended(n: Node) -> GemmShape:
    queries, keys, values = sides(n)
    return GemmShape(numel(n.shape[:-2]), queries.rows, values.rows, keys.rows, inner=keys.depth)


ATTENTION = Variant(
    "attention",
    launch.ATTENTION,
    _attended,
    lambda n: (*(f.tensor for f in sides(n)), *scores(n).tensors),
    lambda _: (False,),
    {False: ()},
    {False: (1, 3, 3)},
    TILE_RATE,
    FULL_FLOAT32,
    "one pass over keys and values, float32 in two float16 parts",
    folds="",
    widths=lambda n: (width(n),),
    mma_sync=MMA_SYNC_TILES,
)
