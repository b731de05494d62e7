"""Losses -> our maps, and one reduction over everything.

Each formula is the one that PyTorch computes element by element (aten/src/ATen/native/Loss.cpp,
Distance.cpp). A function takes the arguments of an ATen call, tensors as Values, and returns None
where the call has to stay: shapes that differ, types other than floats, options without a formula.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf
from types import MappingProxyType

import torch

from fusewright.common.dtypes import FLOATS
from fusewright.frontend.lowering.call import abreast, trailing
from fusewright.ir.builder import TensorExpr, cast, pointwise, reduce, reshape, where
from fusewright.ir.decompositions import wide
from fusewright.ir.graph import node
from fusewright.ir.library_call import LibraryCall, Scalar, TensorRef

MEAN, SUM = 1, 2  # ATen's numbers of the reductions; 0 is none
LEAST_ROW = 256  # elements of a row that is reduced by itself
OPS = MappingProxyType({MEAN: "mean", SUM: "sum"})
Formula = Callable[[TensorExpr, TensorExpr, float], TensorExpr]


def _like(x: TensorExpr, y: TensorExpr) -> bool:
    return bool(x.shape) and (x.shape, x.dtype) == (y.shape, y.dtype) and x.dtype in FLOATS


def _loss(formula: Formula, default: float = 1.0) -> Callable[..., TensorExpr | None]:
    """A loss (x, target, reduction, width), both tensors of one shape and type."""

    def build(
        x: TensorExpr, y: TensorExpr, reduction: int = MEAN, width: float = default
    ) -> TensorExpr | None:
        if not _like(x, y) or width <= 0.0:
            return None
        return _reduced(formula(wide(x), wide(y), width), reduction, x.dtype)

    return build


def _reduced(each: TensorExpr, reduction: int, dtype: torch.dtype) -> TensorExpr:
    """What a reduction makes of the loss of each element. Long rows are reduced first, so that the
    kernel that computes them row by row can do it."""
    if reduction not in OPS:
        return cast(each, dtype)
    last = each.shape[-1]
    if len(each.shape) > 1 and isinstance(last, int) and last >= LEAST_ROW:
        each = reduce(OPS[reduction], each, [len(each.shape) - 1])
    return cast(reduce(OPS[reduction], each, range(len(each.shape))), dtype)


def _squared(x: TensorExpr, y: TensorExpr, _: float) -> TensorExpr:
    return (x - y) * (x - y)


def _smooth(x: TensorExpr, y: TensorExpr, beta: float) -> TensorExpr:
    """d^2 / (2 beta) for a difference below beta, else d - beta / 2."""
    d = pointwise("abs", x - y)
    return where(pointwise("lt", d, beta), 0.5 * d * d / beta, d - 0.5 * beta)


def _huber(x: TensorExpr, y: TensorExpr, delta: float) -> TensorExpr:
    """d^2 / 2 for a difference up to delta, else delta (d - delta / 2)."""
    d = pointwise("abs", x - y)
    return where(pointwise("le", d, delta), 0.5 * d * d, delta * (d - 0.5 * delta))


def _divergence(
    x: TensorExpr, y: TensorExpr, reduction: int = MEAN, *, log_target: bool = False
) -> TensorExpr | None:
    """y (log(y) - x), 0 log(0) = 0; with the logarithm of a target, exp(y) (y - x)."""
    if not _like(x, y):
        return None
    a, b = wide(x), wide(y)
    if log_target:
        return _reduced(pointwise("exp", b) * (b - a), reduction, x.dtype)
    # One product, since two would each be rounded where the logarithms cancel; of infinity it
    # takes two to be as undefined as eager.
    apart = where(pointwise("eq", b, 0.0), 0.0, pointwise("log", b)) - a
    return _reduced(where(pointwise("eq", b, inf), b - b * a, b * apart), reduction, x.dtype)


def _cosine(x: TensorExpr, y: TensorExpr, dim: int = 1, eps: float = 1e-8) -> TensorExpr | None:
    """The sum of x / |x| times y / |y|, where no length counts as less than eps."""
    if not _like(x, y) or not trailing(x, [dim]) or not trailing(y, [dim]):
        return None
    a, b = (_unit(wide(v), dim, eps) for v in (x, y))
    return cast(reduce("sum", a * b, [dim]), x.dtype)


def _unit(x: TensorExpr, dim: int, eps: float) -> TensorExpr:
    length = pointwise("sqrt", reduce("sum", x * x, [dim], keepdim=True))
    return x / pointwise("maximum", length, eps)


def _cross_entropy(
    x: TensorExpr,
    target: TensorExpr,
    weight: TensorExpr | None = None,
    reduction: int = MEAN,
    ignore: int = -100,
    smoothing: float = 0.0,
) -> TensorExpr | None:
    """log(sum(exp(x - max))) - (x[target] - max), mean over what is not ignored.

    PyTorch looks -x[target] up: it complains of a target that is no class.
    """
    kept = (*x.shape[:1], *x.shape[2:])
    plain = target.dtype is torch.int64 and len(x.shape) > 1 and target.shape == kept
    if not plain or weight is not None or smoothing or x.dtype not in FLOATS:
        return None
    if not trailing(x, [1]) and not abreast(x, [1]):
        return None
    call = LibraryCall(
        "aten.nll_loss",
        "default",
        "torch.nn.functional.nll_loss",
        (TensorRef(0), TensorRef(1)),
        (("ignore_index", Scalar(ignore)), ("reduction", Scalar("none"))),
    )
    made = node("library", [x.node, target.node], shape=kept, dtype=x.dtype, call=call)
    less = TensorExpr(made)
    top = reduce("max", wide(x), [1], keepdim=True)
    total = reduce("sum", pointwise("exp", wide(x) - top), [1])
    counts = pointwise("ne", target, ignore)
    each = where(counts, pointwise("log", total) + (wide(less) + reshape(top, kept)), 0.0)
    if reduction not in OPS:
        return cast(each, x.dtype)
    dims = range(len(kept))
    found = reduce("sum", each, dims)
    mean = found / reduce("sum", cast(counts, each.dtype), dims) if reduction == MEAN else found
    return cast(mean, x.dtype)


LOSSES: Mapping[str, Callable[..., TensorExpr | None]] = MappingProxyType(
    {
        "aten.mse_loss": _loss(_squared),
        "aten.smooth_l1_loss": _loss(_smooth),
        "aten.huber_loss": _loss(_huber),
        "aten.kl_div": _divergence,
        "aten.cosine_similarity": _cosine,
        "aten.cross_entropy_loss": _cross_entropy,
    }
)
