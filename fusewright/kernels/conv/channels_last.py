"""Tensors [n, c, ...] whose channels lie innermost, which PyTorch calls channels last."""

from __future__ import annotations

from fusewright.frontend.library_calls import CONCATENATION
from fusewright.frontend.lowering import with_memory_order
from fusewright.ir.builder import TensorExpr
from fusewright.ir.graph import Graph, Node, base, rebuild_from, toposort
from fusewright.ir.strided_view import strides
from fusewright.kernels.gemm.match import memory_of_operand


def last_order(rank: int) -> tuple[int, ...]:
    """The dimensions from the outermost to the innermost in memory."""
    return (0, *range(2, rank), 1)


def lies_last(n: Node) -> bool:
    """Whether what `n` shows lies channels last; single pixels lie so and otherwise."""
    found = memory_of_operand(n)
    if found is None:
        return False
    wanted = strides(n.shape, last_order(len(n.shape)))
    each = zip(n.shape, found[1], wanted, strict=True)
    return all(size == 1 or step == last for size, step, last in each)


def shown(n: Node) -> Node:
    """The tensor that a view shows, if it lies channels last there; else `n`."""
    found = memory_of_operand(n)
    return found[0] if found and lies_last(n) else n


def tails(graph: Graph) -> frozenset[int]:
    """The `id`s of nodes that a map or a cat reads: their kernels may compute the one, or store
    where the other wants it. A cast is none by itself."""
    nodes = toposort((*graph.inputs, *graph.roots))
    read = set[int]()
    for n in reversed(nodes):
        joins = n.called == CONCATENATION
        if joins or (n.row.kind == "pointwise" and (n.op != "cast" or id(n) in read)):
            read |= {id(base(a)) for a in n.args}
    return frozenset(read)


def inner(graph: Graph) -> frozenset[int]:
    """The `id`s of nodes that only maps and reductions read."""
    nodes = toposort((*graph.inputs, *graph.roots))
    seen = {id(a) for n in nodes if n.row.kind not in ("pointwise", "reduction") for a in n.args}
    seen |= {id(n) for n in graph.roots}
    return frozenset(id(n) for n in nodes) - seen


def laid(graph: Graph) -> Graph:
    """Maps that only maps and reductions read lie as these do, so that kernels may end anywhere.

    Capture knows the order of each call's result, and not of what leads there.
    """
    within = inner(graph)

    def change(old: Node, n: Node) -> Node:
        orders = [a.order for a in n.args if a.order and a.shape == n.shape]
        return (
            with_memory_order(TensorExpr(n), orders[0]).node
            if id(old) in within and orders and not n.order
            else n
        )

    return rebuild_from(graph, change)
