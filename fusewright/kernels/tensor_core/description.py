"""Kernel with a contraction + how it is fed -> what reports say: its class, bytes, operations, why.

Its bytes and operations are predictions, as are the rates of a machine.
"""

from __future__ import annotations

import math

import torch

from fusewright.fusion.planner import Kernel, elements, nbytes
from fusewright.ir.graph import Graph, Node, base, shape_text, times
from fusewright.ir.specs import ConvSpec, spec_of
from fusewright.kernels.interface import Description, StrategyContext
from fusewright.kernels.tensor_core.anchor import anchor_of
from fusewright.kernels.tensor_core.prologue import Prologue
from fusewright.kernels.tensor_core.variant import FULL_FLOAT32, GemmShape, Variant

SHORT = {torch.float16: "fp16", torch.bfloat16: "bf16"}


def describe(
    kind: Variant, kernel: Kernel, prologue: Prologue, context: StrategyContext, share: float = 1.0
) -> Description:
    """kind: the variant that has the tile.  share: how much of the result is multiplied at all."""
    n, graph, machine = anchor_of(kernel), context.graph, context.target.machine
    split = kind.numeric == FULL_FLOAT32
    return Description(
        _why(kernel, n, kind, prologue),
        kind.numeric.format(dtype=SHORT.get(n.dtype, "")),
        sum(plan.passes * nbytes(plan.tensor, graph) for plan in prologue.operands),
        _flops(n, kind.matrix(n), graph, share),
        machine.kernel_flops if split else machine.half_flops,
    )


def _flops(n: Node, matrix: GemmShape, graph: Graph, share: float) -> int:
    """Two for each multiply-add of the product, and of one that makes its left factor."""
    inner = 0
    if matrix.inner_depth is not None:
        inner = graph.hint(times(matrix.batches, matrix.rows)) * graph.hint(matrix.inner_depth)
    window = spec_of(n, ConvSpec).pool_window if n.op == "conv" else None
    pixels = math.prod(window or (1,))  # of an element
    each = round(elements(n, graph) * share) * pixels + inner
    return 2 * graph.hint(matrix.depth) * each


def _why(kernel: Kernel, n: Node, kind: Variant, prologue: Prologue) -> tuple[str, ...]:
    reductions = ", ".join(dict.fromkeys(f.op for f in kernel.reductions))
    both = zip(prologue.operands, n.args, strict=False)
    packed = [f"{_factor_name(a)} {shape_text(a.shape)}" for plan, a in both if plan.is_packed]
    verb = "is" if len(packed) == 1 else "are"
    first = f"{' and '.join(packed)} {verb} packed first" if packed else "nothing is packed"
    dtype = str(n.dtype).removeprefix("torch.")
    return (
        f"tensor cores: {kind.why.format(dtype=dtype)};",
        f"{first}; {reductions or 'the rest'} on its tiles",
    )


def _factor_name(n: Node) -> str:
    """The name of a parameter, or what computes the tensor."""
    n = base(n)
    return str(n["name"]) if n.row.state else f"the {n.short_name}"
