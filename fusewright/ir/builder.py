"""Write graphs as arithmetic: `TensorExpr` wraps a Node, so that `x * sigmoid(x)` builds nodes.

Shapes broadcast and number operands take the tensor's type, as in PyTorch. Types must agree
already: promotion is `promote`'s business.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from fusewright.common.dtypes import HALF
from fusewright.ir.graph import (
    BatchSize,
    Node,
    Shape,
    Size,
    base,
    broadcast,
    node,
    numel,
)
from fusewright.ir.operators import OPS
from fusewright.ir.specs import ViewFill

Number = int | float | bool | BatchSize


@dataclass(frozen=True)
class TensorExpr:
    """A node with Python's arithmetic on it."""

    node: Node

    @property
    def shape(self) -> Shape:
        return self.node.shape

    @property
    def dtype(self) -> torch.dtype:
        return self.node.dtype

    def __add__(self, other: TensorExpr | Number) -> TensorExpr:
        return pointwise("add", self, other)

    def __sub__(self, other: TensorExpr | Number) -> TensorExpr:
        return pointwise("sub", self, other)

    def __mul__(self, other: TensorExpr | Number) -> TensorExpr:
        return pointwise("mul", self, other)

    def __truediv__(self, other: TensorExpr | Number) -> TensorExpr:
        return pointwise("div", self, other)

    def __radd__(self, other: Number) -> TensorExpr:
        return pointwise("add", other, self)

    def __rsub__(self, other: Number) -> TensorExpr:
        return pointwise("sub", other, self)

    def __rmul__(self, other: Number) -> TensorExpr:
        return pointwise("mul", other, self)

    def __rtruediv__(self, other: Number) -> TensorExpr:
        return pointwise("div", other, self)

    def __neg__(self) -> TensorExpr:
        return pointwise("neg", self)

    def __gt__(self, other: TensorExpr | Number) -> TensorExpr:
        return pointwise("gt", self, other)

    def __ge__(self, other: TensorExpr | Number) -> TensorExpr:
        return pointwise("ge", self, other)

    def __lt__(self, other: TensorExpr | Number) -> TensorExpr:
        return pointwise("lt", self, other)

    def __le__(self, other: TensorExpr | Number) -> TensorExpr:
        return pointwise("le", self, other)


def constant(value: Number, dtype: torch.dtype) -> TensorExpr:
    """A number as a tensor of no dimensions; a Batch is a number known at run time."""
    if not isinstance(value, BatchSize) and not isinstance(value, bool):
        value = float(value) if dtype.is_floating_point else _wrapped(int(value), dtype)
    return TensorExpr(node("constant", shape=(), dtype=dtype, value=value))


def _wrapped(value: int, dtype: torch.dtype) -> int:
    """The integer of a type with the same low bits."""
    if dtype is torch.bool:
        return value
    info = torch.iinfo(dtype)
    return (value - info.min) % (1 << info.bits) + info.min


def pointwise(op: str, *operands: TensorExpr | Number) -> TensorExpr:
    """The map `op` of the table; numbers take the type of the (last) tensor operand."""
    dtype = [o.dtype for o in operands if isinstance(o, TensorExpr)][-1]
    values = [o if isinstance(o, TensorExpr) else constant(o, dtype) for o in operands]
    result = {"bool": torch.bool, "second": values[-1].dtype}.get(OPS[op].result, values[0].dtype)
    shape = broadcast([v.shape for v in values])
    return TensorExpr(node(op, [v.node for v in values], shape=shape, dtype=result))


def where(condition: TensorExpr, a: TensorExpr | Number, b: TensorExpr | Number) -> TensorExpr:
    """`a` where the condition holds, else `b`."""
    dtype = (a if isinstance(a, TensorExpr) else b).dtype  # type: ignore[union-attr]
    wrap = [v if isinstance(v, TensorExpr) else constant(v, dtype) for v in (a, b)]
    return pointwise("where", condition, *wrap)


def cast(x: TensorExpr, dtype: torch.dtype, *, rounds: bool = False) -> TensorExpr:
    """`x` in another type; nothing when it has it.

    rounds: the model asks for this type, so a half type must really lose its bits; otherwise a half
    value stays in float32 until it is stored.
    """
    if x.dtype is dtype:
        return x
    value = x.node["value"] if x.node.op == "constant" else None
    if isinstance(value, BatchSize):
        return constant(value, dtype)
    if isinstance(value, int | float):
        whole = torch.tensor(value, dtype=x.dtype).to(dtype)
        return constant(whole.item() if rounds or dtype not in HALF else value, dtype)
    return TensorExpr(node("cast", [x.node], shape=x.shape, dtype=dtype, to=dtype, rounds=rounds))


def rounded(x: TensorExpr) -> TensorExpr:
    """`x` as it is where it has been stored: a value of a half type loses the bits beyond it."""
    below = base(x.node)
    stored = below.row.kind == "leaf" and below.op != "constant"
    if x.dtype not in HALF or stored or (below.op == "cast" and below["rounds"] is True):
        return x
    if x.node.op == "constant":
        value = x.node["value"]
        if isinstance(value, int | float):
            return constant(torch.tensor(value, dtype=x.dtype).item(), x.dtype)
    made = node("cast", [x.node], shape=x.shape, dtype=x.dtype, order=x.node.order,
                to=x.dtype, rounds=True)  # fmt: skip
    return TensorExpr(made)


def bitcast(x: TensorExpr, dtype: torch.dtype) -> TensorExpr:
    """The bits of `x`, as it would be stored, read as another type of the same width."""
    if x.node.op == "bitcast":
        x = TensorExpr(x.node.args[0])
    if x.dtype is dtype:
        return x
    return TensorExpr(node("bitcast", [x.node], shape=x.shape, dtype=dtype, to=dtype, of=x.dtype))


def reduce(
    op: str,
    x: TensorExpr,
    dims: Sequence[int],
    keepdim: bool = False,
    dtype: torch.dtype | None = None,
) -> TensorExpr:
    """Reduce `x` over `dims` (any order, negative allowed). dtype: of a result that is wider."""
    rank = len(x.shape)
    wanted = tuple(sorted({d % rank for d in dims})) if rank else ()
    kept = tuple(s for i, s in enumerate(x.shape) if i not in wanted)
    dtype = dtype or {"index": torch.int64}.get(OPS[op].result, x.dtype)
    alone = OPS[op].of_one
    if alone and wanted and all(x.shape[d] == 1 for d in wanted):
        result = reshape(cast(OF_ONE[alone](x), dtype), kept)
    else:
        result = TensorExpr(node(op, [x.node], shape=kept, dtype=dtype, dims=wanted)) if rank else x
    if not keepdim:
        return result
    return reshape(result, tuple(1 if i in wanted else s for i, s in enumerate(x.shape)))


def copy(x: TensorExpr) -> TensorExpr:
    """The same values in fresh memory."""
    return TensorExpr(node("copy", [x.node], shape=x.shape, dtype=x.dtype))


def _whole(x: TensorExpr) -> TensorExpr:
    return x + 0.0 if x.dtype.is_floating_point else copy(x)


def _nothing(x: TensorExpr) -> TensorExpr:
    """Position 0 everywhere, in memory: it may be a result."""
    return copy(expand(reshape(constant(0, torch.int64), (1,) * len(x.shape)), x.shape))


# Reductions of a single element. A sum begins with 0, so that of -0 is 0.
OF_ONE: Mapping[str, Callable[[TensorExpr], TensorExpr]] = {
    "whole": _whole,
    "copy": copy,
    "first": _nothing,
}


def reshape(x: TensorExpr, shape: Shape) -> TensorExpr:
    """The same elements in row-major order under another shape."""
    return (
        x if shape == x.shape else TensorExpr(node("reshape", [x.node], shape=shape, dtype=x.dtype))
    )


def permute(x: TensorExpr, permutation: Sequence[int]) -> TensorExpr:
    """Dimension i of the result is dimension permutation[i] of `x`."""
    wanted = tuple(p % len(x.shape) for p in permutation)
    if wanted == tuple(range(len(wanted))):
        return x
    shape = tuple(x.shape[p] for p in wanted)
    return TensorExpr(node("permute", [x.node], shape=shape, dtype=x.dtype, permutation=wanted))


def expand(x: TensorExpr, shape: Shape) -> TensorExpr:
    """Repeat dimensions of size 1, without memory."""
    return (
        x if shape == x.shape else TensorExpr(node("expand", [x.node], shape=shape, dtype=x.dtype))
    )


def all_true(shape: Shape) -> TensorExpr:
    """True for every element of a shape."""
    one = node("constant", shape=(1,) * len(shape), dtype=torch.bool, value=True)
    return expand(TensorExpr(one), shape)


def narrow(x: TensorExpr, dim: int, start: int, end: int, step: int = 1) -> TensorExpr:
    """Every `step`-th of the elements start .. end - 1 along `dim`; there must be some."""
    length = -(-(end - start) // step)
    if length == x.shape[dim]:
        return x
    shape = (*x.shape[:dim], length, *x.shape[dim + 1 :])
    made = node(
        "narrow", [x.node], shape=shape, dtype=x.dtype, dim=dim, start=start, end=end, step=step
    )
    return TensorExpr(made)


def pad(
    x: TensorExpr, pads: Sequence[tuple[int, int]], value: Number = 0, *, unobserved: bool = False
) -> TensorExpr:
    """`value` around `x`: so many before and after each dimension, none of them negative.

    unobserved: nobody looks at what is added.
    """
    if not any(low or high for low, high in pads):
        return x
    shape = tuple(
        low + s + high if isinstance(s, int) else s
        for s, (low, high) in zip(x.shape, pads, strict=True)
    )
    spec = ViewFill(tuple(pads), value, unobserved)
    return TensorExpr(node("pad", [x.node], shape=shape, dtype=x.dtype, order=(), spec=spec))


def flip(x: TensorExpr, dims: Sequence[int]) -> TensorExpr:
    """Some dimensions from their last element to their first."""
    turned = tuple(d for d in sorted({d % len(x.shape) for d in dims}) if x.shape[d] != 1)
    made = node("flip", [x.node], shape=x.shape, dtype=x.dtype, dims=turned)
    return TensorExpr(made) if turned else x


def roll(x: TensorExpr, shifts: Mapping[int, int]) -> TensorExpr:
    """Dimension d goes round by shifts[d] elements."""
    dims, by = tuple(shifts), tuple(shifts.values())
    made = node("roll", [x.node], shape=x.shape, dtype=x.dtype, shifts=by, dims=dims)
    return TensorExpr(made) if shifts else x


def triangle(x: TensorExpr, side: str, diagonal: int) -> TensorExpr:
    """`triu` or `tril` of the last two dimensions."""
    return TensorExpr(node(side, [x.node], shape=x.shape, dtype=x.dtype, diagonal=diagonal))


def count(x: TensorExpr, dims: Sequence[int]) -> Size:
    """How many elements a reduction over `dims` merges."""
    return numel(x.shape[d] for d in {d % len(x.shape) for d in dims}) if x.shape else 1
