"""Graph -> Graph: triangles of products are choices, which are made where products are computed.

    triu(x), x of maps of a product   ->   where(triu(True), x, 0)
    triu(copy(expanded number))       ->   triu(expanded number)

A piece of a tensor is read from memory; a choice by a number's triangle is one more map, which
reads nothing: where an element stands decides. So masks that a model makes of ones join, too.
"""

from __future__ import annotations

import torch

from fusewright.ir.builder import TensorExpr, constant, expand, reshape, triangle, where
from fusewright.ir.graph import Graph, Node, Shape, rebuild, with_args
from fusewright.kernels.tensor_core.support import supports
from fusewright.targets.target import Target


def masked(graph: Graph, target: Target) -> Graph:
    """The same graph, with choices for triangles of what a product's kernel computes."""
    return rebuild(graph, _choice) if supports(target.arch, "gemm.packed") else graph


def _choice(n: Node) -> Node:
    if not n.row.triangle:
        return n
    (x,), diagonal = n.args, n["diagonal"]
    assert isinstance(diagonal, int)
    if (number := _number(x)) is not None:
        return with_args(n, (_everywhere(TensorExpr(number), n.shape).node,))
    if not _of_matmul(x):
        return n
    true = _everywhere(constant(True, torch.bool), n.shape)
    return where(triangle(true, n.op, diagonal), TensorExpr(x), 0).node


def _everywhere(number: TensorExpr, shape: Shape) -> TensorExpr:
    return expand(reshape(number, (1,) * len(shape)), shape)


def _number(x: Node) -> Node | None:
    """The number that all elements are, if one."""
    while x.row.uniform:
        (x,) = x.args
    return x if x.op == "constant" else None


def _of_matmul(x: Node) -> bool:
    """Whether maps alone, and other shapes, lie between a product and `x`."""
    if x.row.kind == "pointwise" or x.op == "reshape":
        return any(map(_of_matmul, x.args))
    return x.op == "matmul"
