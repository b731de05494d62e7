"""One ATen call -> nodes of our IR: how each operator we have kernels for is written with ours.

`LOWER` maps an ATen name, without its overload, to a function of an `AtenCall`; `OVERLOADS` says
which overloads of the name it knows. It may return None: then, as for every name and overload that
is not in the tables, for what no kernel computes (complex numbers, float8, tensors of nothing), the
call becomes a visible library node.

Here is the one place that rounds what kernels keep wider (docs/numerics.md): a call with a result
of another type reads its arguments of a half type as if they had been stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch
from torch.utils import _pytree as pytree

from fusewright.common.dtypes import HALF, OF_KERNELS
from fusewright.frontend.lowering import normalizations, pointwise, reductions, views
from fusewright.frontend.lowering.call import AtenCall, Lowered
from fusewright.ir.builder import TensorExpr, copy, rounded
from fusewright.ir.graph import Node, node, numel

__all__ = ["LOWER", "OVERLOADS", "Lowered", "as_stored", "lower", "reordered"]

LOWER: dict[str, Callable[[AtenCall], Lowered]] = {
    **pointwise.LOWER,
    **views.LOWER,
    **reductions.LOWER,
    **normalizations.LOWER,
}
# The overloads that an entry knows, where these are not just `default`. Another overload of the
# same name may mean something else: `view.dtype` reads the same bits as another type.
_TENSORS_OR_NUMBERS = ("Tensor", "Scalar")
_ALONG = ("default", "dim", "dims")
OVERLOADS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        **{
            f"aten.{name}": _TENSORS_OR_NUMBERS
            for name in (
                *("mul", "eq", "ne", "lt", "le", "gt", "ge", "add", "sub", "rsub", "fmod"),
                *("__and__", "__or__", "__xor__", "__lshift__", "__rshift__"),
                *("masked_fill", "lerp"),
            )
        },
        **{
            f"aten.bitwise_{name}": ("Tensor", "Scalar", "Scalar_Tensor")
            for name in ("and", "or", "xor")
        },
        **{
            f"aten.bitwise_{way}_shift": ("Tensor", "Tensor_Scalar", "Scalar_Tensor")
            for way in ("left", "right")
        },
        **dict.fromkeys(("aten.any", "aten.all"), _ALONG),
        **dict.fromkeys(("aten.max", "aten.min"), ("default", "dim", "other")),
        **dict.fromkeys(("aten.var", "aten.std"), ("default", "dim", "correction")),
        **dict.fromkeys(("aten.softmax", "aten.log_softmax"), ("int",)),
        **dict.fromkeys(("aten.clamp", "aten.clamp_min", "aten.clamp_max"), ("default", "Tensor")),
        **dict.fromkeys(("aten.transpose", "aten.select", "aten.unbind"), ("int",)),
        "aten.remainder": ("Tensor", "Scalar", "Scalar_Tensor"),
        "aten.div": ("Tensor", "Scalar", "Tensor_mode", "Scalar_mode"),
        "aten.pow": ("Tensor_Tensor", "Tensor_Scalar", "Scalar"),
        "aten.where": ("self", "ScalarOther", "ScalarSelf", "Scalar"),
        "aten.fill": _TENSORS_OR_NUMBERS,
        "aten.squeeze": _ALONG,
        "aten.slice": ("Tensor",),
        "aten.split": ("Tensor", "sizes"),
        "aten.sum": ("default", "dim_IntList"),
        "aten.mean": ("default", "dim"),
        "aten.prod": ("default", "dim_int"),
        "aten.norm": ("Scalar", "ScalarOpt_dim", "ScalarOpt_dtype", "ScalarOpt_dim_dtype"),
        "aten._native_batch_norm_legit": ("no_stats",),
    }
)
ONLY_DEFAULT = ("default",)
# Functions with steps: of a value beside a step they are something else than of the rounded value.
STEPS = frozenset(
    f"aten.{name}"
    for name in ("sign", "floor", "ceil", "round", "trunc", "remainder", "fmod", "threshold")
)


def lower(call: AtenCall) -> Lowered:
    """Write one call with our operators, or return None if it has to stay a library call."""
    function = LOWER.get(call.name)
    if function is None or call.overload not in OVERLOADS.get(call.name, ONLY_DEFAULT):
        return None
    if _odd(call) and call.name not in views.SAME:
        return None
    made = function(call)
    if made is None:
        return None
    values = made if isinstance(made, tuple) else (made,)
    results = [v.dtype for v in values if v is not None]
    careful = replace(
        call,
        args=as_stored(call.args, results, steps=_has_steps(call)),
        kwargs=as_stored(dict(call.kwargs), results, steps=_has_steps(call)),
    )
    return made if careful == call else function(careful)


def as_stored(arguments: Any, results: Iterable[torch.dtype], *, steps: bool = False) -> Any:
    """The arguments of a call, those of a half type rounded where a result is of another type.

    steps: also where every result has that type, too.
    """
    kinds = set(results)

    def read(x: Any) -> Any:
        wider = isinstance(x, TensorExpr) and x.dtype in HALF and (steps or kinds - {x.dtype})
        return rounded(x) if wider else x

    return pytree.tree_map(read, arguments, is_leaf=lambda x: isinstance(x, TensorExpr))


def _has_steps(call: AtenCall) -> bool:
    return call.name in STEPS or (call.name == "aten.div" and bool(call.kwargs))


def _odd(call: AtenCall) -> bool:
    """A call on numbers that no kernel computes, or on none."""
    given = pytree.tree_leaves((call.args, dict(call.kwargs)))
    kinds = [(a.dtype, a.shape) for a in given if isinstance(a, TensorExpr)]
    # Further results may be empty where nothing asks for them, as the statistics of batch norm.
    kinds += [(r.dtype, r.shape) for r in call.results[:1]]
    return any(dtype not in OF_KERNELS or numel(shape) == 0 for dtype, shape in kinds)


def with_memory_order(value: TensorExpr, order: tuple[int, ...]) -> TensorExpr:
    """Give the last map the memory order that eager's result has.

    What is computed row-major and only seen in another shape is copied into that order.
    """
    n: Node = value.node
    if order and n.op == "reshape" and _is_computed(n):
        n = copy(value).node
    if n.row.kind != "pointwise" or order == n.order:
        return value
    attributes: dict[str, Any] = dict(n.attributes)
    return TensorExpr(node(n.op, n.args, shape=n.shape, dtype=n.dtype, order=order, **attributes))


def _is_computed(n: Node) -> bool:
    """Whether nothing but shapes lie between a value and row-major memory that a kernel fills."""
    while n.op == "reshape":
        (n,) = n.args
    return n.row.computed and not n.order
