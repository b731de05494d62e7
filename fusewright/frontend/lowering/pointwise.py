"""ATen calls that compute each element from the same element of their operands -> our maps.

Each entry says what PyTorch does about types: in which one it compares or computes, and when it
raises. A call whose error depends on the data is no map, and stays PyTorch's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import torch

from fusewright.common.dtypes import FLOATS, HALF, INTEGERS
from fusewright.frontend.data_scalars import Number
from fusewright.frontend.lowering.call import AtenCall, Lowered, common_type, promoted
from fusewright.ir import decompositions
from fusewright.ir.builder import TensorExpr, cast, constant, copy, pointwise, reshape, where
from fusewright.ir.graph import BatchSize, Shape
from fusewright.ir.operators import OPS

Lowering = Callable[[AtenCall], Lowered]

UNARY = [
    *("abs", "sign", "neg", "reciprocal", "square", "sqrt", "rsqrt", "exp", "exp2", "expm1", "log"),
    *(
        "log2",
        "log10",
        "log1p",
        "sin",
        "cos",
        "tan",
        "asin",
        "acos",
        "atan",
        "sinh",
        "cosh",
        "asinh",
    ),
    *("acosh", "atanh", "tanh", "erf", "erfc", "sigmoid", "logical_not"),
]
BINARY = ["mul", "atan2", "maximum", "minimum", "eq", "ne", "lt", "le", "gt", "ge"]
ROUNDING = ["floor", "ceil", "round", "trunc"]
CLASSES = ["isnan", "isinf", "isfinite"]


def _map(op: str, arity: int) -> Lowering:
    def build(call: AtenCall) -> Lowered:
        if call.kwargs or len(call.args) > arity:
            return None
        if OPS[op].result == "bool":
            return _compare(op, call)
        return pointwise(op, *promoted(call.args, call.dtype))

    return build


def _compare(op: str, call: AtenCall) -> TensorExpr:
    """Comparisons happen in the common type; a number is rounded to it first, as PyTorch does."""
    dtype = common_type(call.args)
    numbers = [_as_compared(a, dtype) for a in call.args]
    return pointwise(op, *promoted(numbers, dtype))


def _as_compared(
    argument: TensorExpr | float | BatchSize, dtype: torch.dtype
) -> TensorExpr | float | BatchSize:
    if dtype not in HALF or isinstance(argument, BatchSize):
        return argument
    if isinstance(argument, Number):
        return cast(TensorExpr(argument.node), dtype, rounds=True)
    return argument if isinstance(argument, TensorExpr) else _half(argument, dtype)


def _half(number: float, dtype: torch.dtype) -> float:
    return float(torch.tensor(number, dtype=dtype).item())


def _rounding(op: str) -> Lowering:
    """Integers are round already."""

    def build(call: AtenCall) -> Lowered:
        return _map(op, 1)(call) if call.dtype in FLOATS else copy(call.args[0])

    return build


def _class(op: str) -> Lowering:
    def build(call: AtenCall) -> Lowered:
        return _map(op, 1)(call) if call.args[0].dtype in FLOATS else None

    return build


def _divisor(op: str) -> Lowering:
    """An integer division by zero is an error in PyTorch, so the divisor must be a number."""

    def build(call: AtenCall) -> Lowered:
        known = call.dtype in FLOATS or (isinstance(call.args[1], int) and call.args[1] != 0)
        return _map(op, 2)(call) if known else None

    return build


def _power(call: AtenCall) -> Lowered:
    """A negative power of integers is an error in PyTorch, and so needs a known exponent."""
    exponent = call.args[1]
    if call.dtype not in FLOATS and not (isinstance(exponent, int) and exponent >= 0):
        return None
    root = None if isinstance(exponent, TensorExpr) else {0.5: "sqrt", -0.5: "rsqrt"}.get(exponent)
    if root:
        return pointwise(root, *promoted(call.args[:1], call.dtype))
    return _map("pow", 2)(call)


def _scaled(op: str) -> Lowering:
    """add and sub: the second argument times alpha."""

    def build(call: AtenCall) -> Lowered:
        a, b = promoted(call.args[:2], call.dtype)
        alpha = call.get(2, "alpha", 1)
        return pointwise(op, a, b if alpha == 1 else b * alpha)

    return build


def _reversed_sub(call: AtenCall) -> Lowered:
    a, b = promoted(call.args[:2], call.dtype)
    alpha = call.get(2, "alpha", 1)
    return b - (a if alpha == 1 else a * alpha)


def _bitwise(op: str) -> Lowering:
    def build(call: AtenCall) -> Lowered:
        return None if call.dtype.is_floating_point else _map(op, 2)(call)

    return build


def _not(call: AtenCall) -> Lowered:
    (x,) = call.args
    return pointwise("logical_not" if x.dtype is torch.bool else "bitwise_not", x)


def _shift(op: str) -> Lowering:
    def build(call: AtenCall) -> Lowered:
        return _map(op, 2)(call) if call.dtype in INTEGERS else None

    return build


def _truth(x: TensorExpr) -> TensorExpr:
    return x if x.dtype is torch.bool else pointwise("ne", x, constant(0, x.dtype))


def _logical(op: str) -> Lowering:
    def build(call: AtenCall) -> Lowered:
        return pointwise(op, *map(_truth, call.args[:2]))

    return build


def _formula(name: str) -> Lowering:
    def build(call: AtenCall) -> Lowered:
        if call.args[0].dtype not in FLOATS:
            return None
        given = [cast(a, call.dtype) if isinstance(a, TensorExpr) else a for a in call.args]
        return decompositions.FORMULAS[name](*given, **call.kwargs)

    return build


def _clamp(call: AtenCall) -> Lowered:
    low, high = call.get(1, "min"), call.get(2, "max")
    x = cast(call.args[0], call.dtype)
    open_to_nan = call.overload == "default" and None in (low, high) and not _nan_bounds()
    for op, bound, end in (("maximum", low, -math.inf), ("minimum", high, math.inf)):
        if bound is not None:
            x = _bounded(op, x, _without_nan(bound, end) if open_to_nan else bound, call)
    return x


@cache
def _nan_bounds() -> bool:
    """Whether a number that is NaN and the only bound makes everything NaN, as two bounds do. In
    PyTorch 2.11, it bounds nothing."""
    return bool(torch.zeros(1, dtype=torch.float32, device="cpu").clamp(max=math.nan).isnan())


def _without_nan(bound: TensorExpr | float, end: float) -> TensorExpr | float:
    """The bound, or the end of all numbers where it is NaN."""
    if isinstance(bound, Number):
        if bound.dtype not in FLOATS:
            return bound
        open_ = where(pointwise("isnan", bound), constant(end, bound.dtype), TensorExpr(bound.node))
        return replace(bound, node=open_.node)
    return end if isinstance(bound, float) and math.isnan(bound) else bound


def _bounded(op: str, x: TensorExpr, bound: TensorExpr | float, call: AtenCall) -> TensorExpr:
    """Of equal zeros these operators give the second: clamped by a number, x keeps its sign."""
    pair = [x, bound] if call.overload == "Tensor" else [bound, x]
    return pointwise(op, *promoted(pair, call.dtype))


def _bound(op: str) -> Lowering:
    return lambda call: _bounded(op, call.args[0], call.args[1], call)


def _where(call: AtenCall) -> Lowered:
    condition, a, b = call.args
    if condition.dtype is not torch.bool:
        return None
    return pointwise("where", condition, *promoted([a, b], call.dtype))


def _masked_fill(call: AtenCall) -> Lowered:
    x, mask, value = call.args
    return pointwise("where", mask, *promoted([value], call.dtype), x)


def _division(call: AtenCall) -> Lowered:
    """Rounded down, PyTorch corrects the quotient by its remainder; that stays a library call."""
    mode = call.kwargs.get("rounding_mode")
    a, b = promoted(call.args[:2], call.dtype)
    if mode is None:
        return a / b
    return pointwise("trunc", a / b) if mode == "trunc" and call.dtype in FLOATS else None


def _prelu(call: AtenCall) -> Lowered:
    x, weight = call.args
    rank = len(x.shape)
    shape: Shape = (
        tuple(weight.shape[0] if i == 1 else 1 for i in range(rank)) if rank > 1 else (1,)
    )
    return where(x > 0.0, x, x * reshape(weight, shape)) if rank else None


def _addcmul(op: str) -> Lowering:
    """x + value a b or x + value a / b, in this order."""

    def build(call: AtenCall) -> Lowered:
        x, a, b = promoted(call.args[:3], call.dtype)
        value = call.kwargs.get("value", 1)
        return x + pointwise(op, a if value == 1 else a * value, b)

    return build


def _lerp(call: AtenCall) -> Lowered:
    """From the nearer end, as PyTorch: a + w (b - a) for |w| < 1/2, else b - (1 - w) (b - a)."""
    a, b, weight = promoted(call.args[:3], call.dtype)
    low, high = a + weight * (b - a), b - (b - a) * (1.0 - weight)
    if isinstance(call.args[2], int | float):
        return low if abs(call.args[2]) < 0.5 else high
    return where(pointwise("abs", weight) < 0.5, low, high)


LOWER: dict[str, Lowering] = {
    **{f"aten.{name}": _map(name, 1) for name in UNARY},
    **{f"aten.{name}": _map(name, 2) for name in BINARY},
    **{f"aten.{name}": _rounding(name) for name in ROUNDING},
    **{f"aten.{name}": _class(name) for name in CLASSES},
    **{name: _formula(name) for name in decompositions.FORMULAS},
    **{f"aten.bitwise_{name}": _bitwise(f"bitwise_{name}") for name in ("and", "or", "xor")},
    **{f"aten.__{name}__": _bitwise(f"bitwise_{name}") for name in ("and", "or", "xor")},
    **{f"aten.logical_{name}": _logical(f"bitwise_{name}") for name in ("and", "or", "xor")},
    "aten.bitwise_not": _not,
    **{f"aten.bitwise_{way}_shift": _shift(f"{way}_shift") for way in ("left", "right")},
    "aten.__lshift__": _shift("left_shift"),
    "aten.__rshift__": _shift("right_shift"),
    "aten.pow": _power,
    "aten.remainder": _divisor("remainder"),
    "aten.fmod": _divisor("fmod"),
    "aten.add": _scaled("add"),
    "aten.sub": _scaled("sub"),
    "aten.rsub": _reversed_sub,
    "aten.div": _division,
    "aten.clamp": _clamp,
    "aten.clamp_min": _bound("maximum"),
    "aten.clamp_max": _bound("minimum"),
    "aten.where": _where,
    "aten.masked_fill": _masked_fill,
    "aten.prelu": _prelu,
    "aten.addcmul": _addcmul("mul"),
    "aten.addcdiv": _addcmul("div"),
    "aten.lerp": _lerp,
}
