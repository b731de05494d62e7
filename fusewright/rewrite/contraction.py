"""Arguments of a library product -> Contraction: alpha * product(left, right) + beta * added.

Both factors have k last, as the kernels do: a right factor that has it first is turned, as a view.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fusewright.ir.builder import TensorExpr, expand, permute, reshape
from fusewright.ir.graph import Node, Shape
from fusewright.rewrite.einsum import einsum, tensordot


@dataclass(frozen=True)
class Contraction:
    """alpha * product(left, right) + beta * added"""

    left: Node
    right: Node
    added: Node | None = None
    beta: float = 1
    alpha: float = 1


def _plain(a: Node, b: Node) -> Contraction:
    right = swap_last_dims(b)
    if len(right.shape) < 3 or len(a.shape) < 2:
        return Contraction(a, right)
    batches = _broadcast(a.shape[:-2], right.shape[:-2])
    return Contraction(broadcast_batches(a, batches), broadcast_batches(right, batches))


def _broadcast(a: Shape, b: Shape) -> Shape:
    """The common shape of two, by PyTorch's rules."""
    rank = max(len(a), len(b))
    filled = [(1,) * (rank - len(shape)) + tuple(shape) for shape in (a, b)]
    return tuple(y if x == 1 else x for x, y in zip(*filled, strict=True))


def broadcast_batches(n: Node, batches: Shape) -> Node:
    """`n` for all of these batches, without a copy."""
    shape = (1,) * (len(batches) + 2 - len(n.shape)) + tuple(n.shape)
    whole = (*batches, *n.shape[-2:])
    return n if n.shape == whole else expand(reshape(TensorExpr(n), shape), whole).node


def _added(c: Node, a: Node, b: Node, beta: float = 1, alpha: float = 1) -> Contraction | None:
    """None for 0 times a product, which BLAS does not compute: no NaN comes of it."""
    return (
        Contraction(a, swap_last_dims(b), c if beta != 0 else None, beta, alpha)
        if alpha != 0
        else None
    )


def _contracted(factors: tuple[Node, Node] | None) -> Contraction | None:
    return Contraction(*factors) if factors else None


FORMS: Mapping[str, Callable[..., Contraction | None]] = {
    "aten.linear": lambda x, weight, bias=None: Contraction(x, weight, bias),
    "aten.matmul": _plain,
    "aten.mm": _plain,
    "aten.bmm": _plain,
    "aten.addmm": _added,
    "aten.baddbmm": _added,
    # `path`: in which order PyTorch contracts more than two tensors, from opt_einsum if it is there
    "aten.einsum": lambda equation, tensors, **_path: _contracted(einsum(equation, tensors)),
    "aten.tensordot": lambda *given: _contracted(tensordot(*given)),
}


def swap_last_dims(b: Node) -> Node:
    rank = len(b.shape)
    turned = (*range(rank - 2), rank - 1, rank - 2)
    if rank < 2:
        return b
    if b.op == "permute" and b["permutation"] == turned:
        return b.args[0]
    return permute(TensorExpr(b), turned).node
