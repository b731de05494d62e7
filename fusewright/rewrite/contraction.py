"""A library product -> Contraction: alpha * matmul(left, right) + beta * added; and back.

Both factors have k last, as the kernels do: a right factor that has it first is turned, as a view.
"""

from __future__ import annotations

from cmath import isfinite  # complex tensors are scaled by complex numbers
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from fusewright.ir.builder import TensorExpr, copy, expand, permute, reshape
from fusewright.ir.graph import Node, Shape, Size, numel, times
from fusewright.ir.strided_view import strides
from fusewright.rewrite.einsum import einsum, tensordot


@dataclass(frozen=True)
class Contraction:
    """alpha * matmul(left, right) + beta * added"""

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
    """None for 0 times a product, which BLAS does not compute: no NaN comes of it. What makes NaN
    or infinities of a product stays BLAS's, too."""
    if alpha == 0 or not (isfinite(alpha) and isfinite(beta)):
        return None
    return Contraction(a, swap_last_dims(b), c if beta != 0 else None, beta, alpha)


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


def contraction_of(n: Node) -> Contraction | None:
    """The product that a library node computes; None if its arguments are no tensors or numbers."""
    found = n.call.bind(n.args)
    form = FORMS[n.call.name](*found.args, **found.kwargs) if found else None
    if form is None or 0 in (*form.left.shape, *form.right.shape):
        return None
    flat = len(form.right.shape) == 2  # all leading dimensions of the left one are rows
    return replace(
        form, left=with_even_strides(form.left, flat), right=with_even_strides(form.right, flat)
    )


def apply_contraction(form: Contraction, product: Node) -> Node:
    """What a form makes of the product of its factors."""
    made = TensorExpr(product)
    scaled = made if form.alpha == 1 else made * form.alpha
    if form.added is not None:
        added = TensorExpr(form.added)
        return (scaled + (added if form.beta == 1 else added * form.beta)).node
    return (scaled if scaled is not made else copy(made)).node


def with_even_strides(n: Node, flat: bool) -> Node:
    """`n`, or a row-major copy of a stored tensor that does not lie evenly."""
    uneven = n.row.kind != "view" and n.order
    if uneven and even_strides(n.shape, strides(n.shape, n.order), flat) is None:
        return copy(TensorExpr(n)).node
    return n


def even_strides(
    shape: Shape, steps: tuple[Size, ...], flat: bool
) -> tuple[Size, Size, Size] | None:
    """From one batch, one row and one k of a factor to the next; None where these are not even.

    steps: the stride of each dimension.  flat: all leading dimensions are rows.
    """
    batched = 0 if flat else len(shape) - 2
    batch = _evenly(shape[:batched], steps[:batched])
    alone = numel(shape[batched:-1]) == 1
    row = shape[-1] if alone else _evenly(shape[batched:-1], steps[batched:-1])
    if batch is None or not row or steps[-1] == 0:
        return None
    return batch, row, steps[-1]


def _evenly(shape: Shape, steps: tuple[Size, ...]) -> Size | None:
    """The stride of several dimensions counted as one: 0 for one element, None if uneven."""
    found: Size | None = None
    expected: Size | None = None
    for size, step in zip(reversed(shape), reversed(steps), strict=True):
        if size == 1:
            continue
        if found is not None and step != expected:
            return None
        found = step if found is None else found
        expected = times(step, size)
    return 0 if found is None else found
