"""Attention node -> Variant: its kernels, and what every stage asks about them."""

from __future__ import annotations

from fusewright.ir.graph import Node, numel
from fusewright.kernels.attention.match import sides, width
from fusewright.kernels.tensor_core.variant import FULL_FLOAT32, GemmShape, Variant


def _attended(n: Node) -> GemmShape:
    queries, keys, values = sides(n)
    return GemmShape(
        numel(n.shape[:-2]), queries.rows, values.rows, keys.rows, inner_depth=keys.depth
    )


ATTENTION = Variant(
    kernel="attention",
    matrix=_attended,
    numeric=FULL_FLOAT32,
    why="one pass over keys and values, float32 as two float16 terms",
    sides=lambda _: (False,),
    widths=lambda n: (width(n),),
)
