"""Attention node -> Prologue: keys and values are packed, queries are split."""

from __future__ import annotations

from fusewright.ir.graph import Node
from fusewright.kernels.attention.match import scores, sides
from fusewright.kernels.tensor_core.prologue import OperandPlan, Prologue


def prologue(n: Node) -> Prologue:
    """How attention's kernel is fed: queries, keys, values, and what its scores take."""
    queries, keys, values = sides(n)
    return Prologue(
        (
            OperandPlan(queries.tensor, "split on the fly"),
            OperandPlan(keys.tensor, "packed hi+lo"),
            OperandPlan(values.tensor, "packed hi+lo"),
            *(OperandPlan(tensor, "direct") for tensor in scores(n).tensors),
        ),
        # of both; that of values begins at a multiple of 256
        f"-(-({keys.packed_bytes}) // 256) * 256 + {values.packed_bytes}",
    )
