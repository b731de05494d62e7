"""One ATen call -> nodes of our IR: how each operator we have kernels for is written with ours.

`LOWER` maps an ATen name, without its overload, to a function of a `Call`. It may return None:
then, as for every name that is not in the table, the call becomes a visible library node.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fusewright.formula import Value
from fusewright.ir import Node, node, numel
from fusewright.lower import folds, norms, pointwise, views
from fusewright.lower.call import Call, Lowered, Result

__all__ = ["LOWER", "Call", "Lowered", "Result", "lower", "reordered"]

LOWER: dict[str, Callable[[Call], Lowered]] = {
    **pointwise.LOWER,
    **views.LOWER,
    **folds.LOWER,
    **norms.LOWER,
}


def lower(call: Call) -> Lowered:
    """Write one call with our operators, or return None if it has to stay a library call."""
    function = LOWER.get(call.name)
    kinds = [(a.dtype, a.shape) for a in call.args if isinstance(a, Value)]
    # Further results may be empty where nothing asks for them, as the statistics of batch norm.
    kinds += [(r.dtype, r.shape) for r in call.results[:1]]
    odd = any(dtype.is_complex or numel(shape) == 0 for dtype, shape in kinds)
    return None if function is None or odd else function(call)


def reordered(value: Value, order: tuple[int, ...]) -> Value:
    """Give the last map the memory order that eager's result has."""
    n: Node = value.node
    if n.row.kind != "map" or order == n.order:
        return value
    attributes: dict[str, Any] = dict(n.attributes)
    return Value(node(n.op, n.args, shape=n.shape, dtype=n.dtype, order=order, **attributes))
