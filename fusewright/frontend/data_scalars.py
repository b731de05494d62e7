"""A tensor's value as a number of Python, known only when the model runs: `.item()` and what is
computed from it.

    Number = Value of no dimensions (float64 or int64) + the expression of Python that eager has

Arithmetic with tensors takes the Value: like a number of Python, it has no say in the type of the
result. What needs a real number, as an index, takes the expression in a library call.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fusewright.errors import CaptureFailed
from fusewright.ir.builder import TensorExpr, cast, constant, reshape
from fusewright.ir.graph import BatchSize, Node, node
from fusewright.ir.library_call import (
    Arg,
    ComputedNumber,
    DeviceRef,
    DtypeRef,
    LibraryCall,
    ListArg,
    Scalar,
    SizeRef,
    TensorRef,
    with_tensors,
)

# ATen calls that take a Number as they take a number: `promoted` gives it the result's type.
TAKES_NUMBERS = frozenset(
    f"aten.{name}"
    for name in (
        *("add", "sub", "rsub", "mul", "div", "pow", "maximum", "minimum", "clamp", "clamp_min"),
        *("clamp_max", "where", "masked_fill", "eq", "ne", "lt", "le", "gt", "ge"),
    )
)
_TEXTS: dict[Any, str] = {
    operator.add: "({} + {})",
    operator.sub: "({} - {})",
    operator.mul: "({} * {})",
    operator.truediv: "({} / {})",
    operator.floordiv: "({} // {})",
    operator.mod: "({} % {})",
    operator.pow: "({} ** {})",
    operator.neg: "(-{})",
    operator.abs: "abs({})",
    torch.sym_float: "float({})",
    torch.sym_int: "int({})",
    torch.sym_max: "max({}, {})",
    torch.sym_min: "min({}, {})",
}
# Those that are the same on tensors of float64, and raise nothing in Python.
_EXACT: dict[Any, Callable[..., TensorExpr]] = {
    operator.add: operator.add,
    operator.sub: operator.sub,
    operator.mul: operator.mul,
    operator.neg: operator.neg,
}


@dataclass(frozen=True)
class Number(TensorExpr):
    """number: how Python computes it from `tensors`."""

    number: Arg
    tensors: tuple[TensorExpr, ...]


def item(x: TensorExpr) -> Number:
    """`x.item()`: floats as float64, as Python has them, integers as int64."""
    if x.dtype.is_complex or x.dtype is torch.bool:
        raise CaptureFailed(
            f".item() of a tensor of type {x.dtype} gives a number that no kernel takes. Keep it "
            "in a tensor."
        )
    wide = torch.float64 if x.dtype.is_floating_point else torch.int64
    number = ComputedNumber("{}.item()", (TensorRef(0),))
    return Number(cast(reshape(x, ()), wide).node, number, (x,))


def computed(function: Any, operands: Sequence[Any], *, floating: bool) -> Number | None:
    """What Python computes from Numbers and plain numbers; None for what is not known here."""
    if function not in _TEXTS:
        return None
    tensors: list[TensorExpr] = []
    number = ComputedNumber(_TEXTS[function], tuple(_operand(o, tensors) for o in operands))
    plain = all(isinstance(o, Number | int | float) for o in operands)
    if floating and plain and function in _EXACT:
        wide = [
            cast(TensorExpr(o.node), torch.float64)
            if isinstance(o, Number)
            else constant(float(o), torch.float64)
            for o in operands
        ]
        return Number(_EXACT[function](*wide).node, number, tuple(tensors))
    if function is torch.sym_float and isinstance(operands[0], Number):
        wider = cast(TensorExpr(operands[0].node), torch.float64)
        return Number(wider.node, number, tuple(tensors))
    return Number(_filled(number, tensors, floating), number, tuple(tensors))


def takes_numbers(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call may be written with our operators, for all the Numbers among its arguments."""
    places = [k for k, a in enumerate(args) if isinstance(a, Number)]
    names = [k for k, a in kwargs.items() if isinstance(a, Number)]
    scaled = "alpha" in names or (name in ("aten.add", "aten.sub", "aten.rsub") and 2 in places)
    return not (places or names) or (name in TAKES_NUMBERS and not scaled)


def _operand(operand: Any, tensors: list[TensorExpr]) -> Arg:
    """One operand of a number; the tensors that it needs are appended, each once."""
    if isinstance(operand, BatchSize):
        return ComputedNumber("({})", (SizeRef(operand.multiple, operand.names),))
    if not isinstance(operand, Number):
        return ComputedNumber("({})", (Scalar(operand),))
    places: list[Arg] = []
    for t in operand.tensors:
        if not any(t.node is known.node for known in tensors):
            tensors.append(t)
        places.append(TensorRef(next(i for i, k in enumerate(tensors) if k.node is t.node)))
    return with_tensors(operand.number, lambda tensor: places[tensor.position])


def _filled(number: Arg, tensors: Sequence[TensorExpr], floating: bool) -> Node:
    """A tensor that PyTorch fills with what Python computed, so errors are Python's."""
    dtype = torch.float64 if floating else torch.int64
    call = LibraryCall(
        "aten.full",
        "default",
        "torch.full",
        (ListArg((), is_tuple=True), number),
        (("dtype", DtypeRef(dtype)), ("device", DeviceRef())),
        new_memory=True,
    )
    return node("library", [t.node for t in tensors], shape=(), dtype=dtype, call=call)
