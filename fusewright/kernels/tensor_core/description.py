"""Kernel with a contraction + its tile -> what reports say: its class, bytes, operations, why.

Its bytes and operations are predictions, as are the rates of a machine.
"""

from __future__ import annotations

import math
from itertools import chain, repeat

import torch

from fusewright.errors import InternalError
from fusewright.fusion.planner import Kernel, elements, nbytes
from fusewright.ir.graph import Graph, Node, base, shape_text, times
from fusewright.ir.specs import ConvSpec, spec_of
from fusewright.kernels.interface import Description, StrategyContext
from fusewright.kernels.tensor_core.diagonal_band import ALL, DiagonalBand
from fusewright.kernels.tensor_core.strategy import TensorCoreTile
from fusewright.kernels.tensor_core.variant import FULL_FLOAT32, GemmShape, Variant

SHORT = {torch.float16: "fp16", torch.bfloat16: "bf16"}


def describe(
    kind: Variant,
    kernel: Kernel,
    strategy: TensorCoreTile,
    context: StrategyContext,
    some: DiagonalBand,
) -> Description:
    """kind: the variant that has the tile.  some: what of the result is multiplied at all."""
    n, graph, machine = kernel.anchor, context.graph, context.target.machine
    if n is None:
        raise InternalError("A tile is a contraction's.")
    passes = kind.passes[strategy.tile.swapped]
    every = zip(chain(passes, repeat(1)), kind.whole(n), strict=False)
    split = kind.numeric == FULL_FLOAT32
    skipped = "tiles of which a mask leaves nothing are not multiplied"
    return Description(
        (*_why(kernel, n, kind, passes), *[skipped] * (some != ALL)),
        kind.numeric.format(dtype=SHORT.get(n.dtype, "")),
        sum(count * nbytes(tensor, graph) for count, tensor in every),
        _flops(n, kind.matrix(n), graph, some),
        machine.kernel_flops if split else machine.half_flops,
    )


def _flops(n: Node, matrix: GemmShape, graph: Graph, some: DiagonalBand) -> int:
    """Two for each multiply-add of the product, and of one that makes its left factor."""
    rows = graph.hint(times(matrix.batches, matrix.rows)) if matrix.inner else 0
    window = spec_of(n, ConvSpec).pool_window if n.op == "conv" else None
    pixels = math.prod(window or (1,))  # of an element
    share = some.share(*map(graph.hint, n.shape[-2:]))
    each = round(elements(n, graph) * share) * pixels + rows * graph.hint(matrix.inner)
    return 2 * graph.hint(matrix.depth) * each


def _why(kernel: Kernel, n: Node, kind: Variant, passes: tuple[int, ...]) -> tuple[str, ...]:
    folds = ", ".join(dict.fromkeys(f.op for f in kernel.folds))
    counts = zip(passes, n.args, strict=False)
    packed = [f"{_factor_name(a)} {shape_text(a.shape)}" for count, a in counts if count > 1]
    verb = "is" if len(packed) == 1 else "are"
    first = f"{' and '.join(packed)} {verb} packed first" if packed else "nothing is packed"
    dtype = str(n.dtype).removeprefix("torch.")
    return (
        f"tensor cores: {kind.why.format(dtype=dtype)};",
        f"{first}; {folds or 'the rest'} on tiles in shared memory",
    )


def _factor_name(n: Node) -> str:
    """The name of a parameter, or what computes the tensor."""
    n = base(n)
    return str(n["name"]) if n.row.state else f"the {n.short_name}"
