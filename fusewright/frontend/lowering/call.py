"""One ATen call as data, and what every lowering asks about it: types, dimensions, memory order.

Entries of the lowering table get an AtenCall and return values of the graph. What they all need to
know of types and of dimensions that lie side by side is asked here, so that it is answered once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from math import inf, prod
from typing import Any

import torch

from fusewright.common.dtypes import FLOAT
from fusewright.frontend.data_scalars import Number
from fusewright.ir import decompositions
from fusewright.ir.builder import TensorExpr, cast, constant
from fusewright.ir.graph import BatchSize, Shape

LANES = 16  # of them in a cache line: rows side by side that a CPU takes together
# Neighbouring rows of a reduction across memory: fewer would waste most of each access.
LEAST_BESIDE = 8


@dataclass(frozen=True)
class AtenResult:
    """What PyTorch says about one result of a call: shape, type, order of dimensions in memory."""

    shape: Shape
    dtype: torch.dtype
    order: tuple[int, ...]


@dataclass(frozen=True)
class AtenCall:
    """One ATen call. Tensor arguments are Values; sizes that depend on the batch are Batch.

    places: which results these are, where the call returns several and leaves some out.
    across: whether a reduction of a tensor over dimensions may run across memory, where the
    elements of a row do not lie together.
    """

    name: str
    overload: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    results: tuple[AtenResult, ...]
    places: tuple[int, ...] = ()
    across: Callable[[TensorExpr, Sequence[int]], bool] = lambda _x, _dims: False

    def reduces(self, x: TensorExpr, dims: Sequence[int], *, one: bool = False) -> bool:
        """Whether our reductions take these dimensions. one: also if these have one element."""
        if not x.shape:  # a number has one dimension for PyTorch, and none for us
            return False
        alone = one and all(x.shape[d] == 1 for d in dims)
        return alone or trailing(x, dims) or self.across(x, dims)

    @property
    def dtype(self) -> torch.dtype:
        return self.results[0].dtype

    @property
    def shape(self) -> Shape:
        return self.results[0].shape

    def get(self, index: int, name: str, default: Any = None) -> Any:
        """The argument at `index`, or the keyword `name`, or the default."""
        if index < len(self.args):
            return self.args[index]
        return self.kwargs.get(name, default)


Lowered = TensorExpr | tuple[TensorExpr | None, ...] | None


def promoted(arguments: Sequence[Any], dtype: torch.dtype) -> list[TensorExpr]:
    """Tensors and numbers as Values of one type."""
    return [cast(a, dtype) if isinstance(a, TensorExpr) else constant(a, dtype) for a in arguments]


def common_type(arguments: Sequence[Any]) -> torch.dtype:
    """The type in which PyTorch compares these."""
    if len(arguments) == 1:
        return arguments[0].dtype  # type: ignore[no-any-return]
    return torch.result_type(*map(_sample, arguments))


def _sample(argument: Any) -> Any:
    if isinstance(argument, Number):  # it has no say in types, as a number of Python
        return 1.0 if argument.dtype.is_floating_point else 1
    if isinstance(argument, TensorExpr):
        return torch.empty((1,) * len(argument.shape), dtype=argument.dtype)
    return 1 if isinstance(argument, BatchSize) else argument


def trailing(x: TensorExpr, dims: Sequence[int]) -> bool:
    """Whether a reduction over `dims` runs along the innermost dimension: rows lie together."""
    order = x.node.order or tuple(range(len(x.shape)))
    inner = [d for d in order if x.shape[d] != 1]
    return not inner or inner[-1] in {d % len(x.shape) for d in dims}


def beside(x: TensorExpr, dims: Sequence[int]) -> float:
    """How many rows of a reduction over `dims` lie side by side; infinite with the batch."""
    reduced = {d % len(x.shape) for d in dims}
    order = x.node.order or tuple(range(len(x.shape)))
    inner = takewhile(lambda d: d not in reduced, reversed(order))
    sizes = [x.shape[d] for d in inner]
    return prod(s if isinstance(s, int) else inf for s in sizes)


def abreast(x: TensorExpr, dims: Sequence[int], least: int = LANES) -> bool:
    """Whether so many rows of a reduction lie side by side, in a type computed as float."""
    return x.dtype in FLOAT and beside(x, dims) >= least


def dims_of(x: TensorExpr, dims: object) -> tuple[int, ...]:
    """The dimensions as sorted positive numbers; None and [] mean all."""
    rank = len(x.shape)
    chosen = (dims,) if isinstance(dims, int) else tuple(dims or ())  # type: ignore[arg-type]
    return tuple(sorted({int(d) % rank for d in chosen})) if chosen and rank else tuple(range(rank))


def wide(values: Sequence[TensorExpr | None]) -> list[TensorExpr | None]:
    """Half types as float32; None stays."""
    return [None if v is None else decompositions.wide(v) for v in values]


def per_dimension(value: Any, rank: int) -> tuple[int, ...]:
    """One number for all dimensions, or one for each."""
    values = (value,) if isinstance(value, int) else tuple(value)
    return values * rank if len(values) == 1 else values
