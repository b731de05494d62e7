"""Convolution of single pixels -> the product that it is, whose factors are read where they lie.

conv2d(x, w)    ->  matmul(w, pixels of x)         x as [images, pixels, in], channel by channel
                    matmul(pixels of x, w)         x as [images x pixels, in], channels last

Of 16 bits, nothing is packed then; in full float32, the image is, and weights are split, which
takes longer than a convolution's kernel: it stands in where there is none.
"""

from __future__ import annotations

from fusewright.common.dtypes import HALF
from fusewright.ir.builder import TensorExpr, permute, reshape
from fusewright.ir.graph import Node, Shape, node, numel
from fusewright.ir.specs import GemmSpec
from fusewright.kernels.conv.channels_last import last_order
from fusewright.kernels.gemm.match import factor_of
from fusewright.rewrite.contraction import broadcast_batches

# Weights that a tile of a product has, and how many may be missing in the last one: a prediction.
TILE_ROWS, MOST_EMPTY_ROWS = 128, 32


def as_gemm(image: Node, weight: Node, n: Node, instance: int) -> Node | None:
    """The product that has the meaning of the convolution `n`, where both of its factors can be
    read where they lie."""
    order, depth = last_order(len(n.shape)), image.shape[1]
    matrix = reshape(TensorExpr(weight), (n.shape[1], depth))
    if n.order:
        rows = numel(n.shape[d] for d in order[:-1])
        made = _matmul(
            reshape(permute(TensorExpr(image), order), (rows, depth)), matrix, n, instance
        )
        back = tuple(sorted(range(len(order)), key=order.__getitem__))
        shape = tuple(n.shape[d] for d in order)
        return permute(reshape(TensorExpr(made), shape), back).node if made else None
    pixels = permute(reshape(TensorExpr(image), (n.shape[0], depth, numel(n.shape[2:]))), (0, 2, 1))
    if not factor_of(pixels.node, flat=False).turned:
        return None
    made = _matmul(TensorExpr(broadcast_batches(matrix.node, n.shape[:1])), pixels, n, instance)
    return reshape(TensorExpr(made), n.shape).node if made else None


def _matmul(left: TensorExpr, right: TensorExpr, n: Node, instance: int) -> Node | None:
    factors = [left.node, right.node]
    if not _takes(factors, n, flat=len(right.shape) == 2):
        return None
    shape: Shape = (*left.shape[:-1], right.shape[-2])
    spec = GemmSpec(instance, "conv1x1")
    return node("matmul", factors, shape=shape, dtype=n.dtype, spec=spec)


def _takes(factors: list[Node], n: Node, *, flat: bool) -> bool:
    """Whether kernels read them where they lie, and, in float32, fill most of their tiles."""
    left, right = (factor_of(factor, flat=flat) for factor in factors)
    if n.dtype in HALF:
        return left.streams and right.streams
    channels = n.shape[1]
    assert isinstance(channels, int)
    return left.splits and -channels % TILE_ROWS <= MOST_EMPTY_ROWS
