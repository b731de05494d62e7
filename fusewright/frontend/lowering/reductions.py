"""ATen calls that reduce dimensions -> our reductions. A reduction that does not run along the
innermost dimension is a library call at first: how fast its rows are, which do not lie together in
memory, depends on the target (rewrite/target_lowering.py)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from fusewright.common.dtypes import FLOATS
from fusewright.frontend.lowering.call import AtenCall, Lowered, dims_of, promoted
from fusewright.ir import decompositions
from fusewright.ir.builder import TensorExpr, cast, pointwise, reduce
from fusewright.ir.graph import BatchSize

Lowering = Callable[[AtenCall], Lowered]


def _reduction(op: str) -> Lowering:
    """Reductions with arguments (x, dims, keepdim)."""

    def build(call: AtenCall) -> Lowered:
        x: TensorExpr = call.args[0]
        dims = dims_of(x, call.get(1, "dim"))
        if not call.reduces(x, dims, one=True):
            return None
        x = decompositions.wide(cast(x, torch.bool if op in ("any", "all") else call.dtype))
        return cast(reduce(op, x, dims, bool(call.get(2, "keepdim", False))), call.dtype)

    return build


def _global_mean(call: AtenCall) -> Lowered:
    """Adaptive average pooling to one element is the mean of all spatial dimensions."""
    x, sizes = call.args
    if any(size != 1 for size in sizes) or len(x.shape) < len(sizes) + 1:
        return None
    dims = range(len(x.shape) - len(sizes), len(x.shape))
    if not call.reduces(x, dims):
        return None
    return cast(reduce("mean", decompositions.wide(x), dims, keepdim=True), call.dtype)


def _position(op: str) -> Lowering:
    def build(call: AtenCall) -> Lowered:
        x: TensorExpr = call.args[0]
        dims = dims_of(x, call.get(1, "dim"))
        return (
            reduce(op, x, dims, bool(call.get(2, "keepdim", False)))
            if call.reduces(x, dims)
            else None
        )

    return build


def _extreme(op: str) -> Lowering:
    """max and min: of everything, of two tensors, or values and indices along a dimension."""

    def build(call: AtenCall) -> Lowered:
        x: TensorExpr = call.args[0]
        if call.overload == "other":
            return pointwise(op + "imum", *promoted(call.args[:2], call.dtype))
        dims = dims_of(x, call.get(1, "dim"))
        if not call.reduces(x, dims, one=True):
            return None
        keepdim = bool(call.get(2, "keepdim", False))
        values = reduce(op, x, dims, keepdim)
        return (
            values if call.overload == "default" else (values, reduce("arg" + op, x, dims, keepdim))
        )

    return build


def _variance(call: AtenCall) -> Lowered:
    x: TensorExpr = call.args[0]
    whole = call.overload == "default"
    dims = dims_of(x, None if whole else call.get(1, "dim"))
    if not call.reduces(x, dims) or x.dtype not in FLOATS:
        return None
    correction = _correction(call)
    if correction > 1 and any(isinstance(x.shape[d], BatchSize) for d in dims):
        return None  # it could outgrow a batch that is known only at run time
    keepdim = bool(call.kwargs.get("keepdim", call.args[3] if len(call.args) > 3 else False))
    wide = decompositions.wide(x)
    result = decompositions.variance(wide, dims, correction, keepdim)
    return cast(pointwise("sqrt", result) if "std" in call.name else result, call.dtype)


def _correction(call: AtenCall) -> float:
    """What is taken off the count: `correction`, or 1 where `unbiased` holds."""
    if call.overload.startswith("correction"):
        given = call.kwargs.get("correction")
        return 1.0 if given is None else float(given)
    place = 1 if call.overload == "default" else 2
    return float(bool(call.get(place, "unbiased", True)))


def _softmax(function: Callable[[TensorExpr, Sequence[int]], TensorExpr]) -> Lowering:
    def build(call: AtenCall) -> Lowered:
        x: TensorExpr = call.args[0]
        if not call.reduces(x, [call.args[1]], one=True) or x.dtype not in FLOATS:
            return None
        return cast(function(decompositions.wide(cast(x, call.dtype)), [call.args[1]]), call.dtype)

    return build


def _logsumexp(call: AtenCall) -> Lowered:
    x: TensorExpr = call.args[0]
    dims = dims_of(x, call.args[1])
    if not call.reduces(x, dims, one=True) or x.dtype not in FLOATS:
        return None
    keepdim = bool(call.get(2, "keepdim", False))
    return cast(decompositions.logsumexp(decompositions.wide(x), dims, keepdim), call.dtype)


def _vector_norm(call: AtenCall) -> Lowered:
    x: TensorExpr = call.args[0]
    power = 2 if call.args[1:2] == (None,) else call.get(1, "ord", 2)
    dims = dims_of(x, call.get(2, "dim"))
    if not call.reduces(x, dims) or power not in (1, 2) or x.dtype not in FLOATS:
        return None
    wide = decompositions.wide(cast(x, call.dtype))
    keepdim = bool(call.get(3, "keepdim", False))
    if power == 1:
        return cast(reduce("sum", pointwise("abs", wide), dims, keepdim), call.dtype)
    return cast(pointwise("sqrt", reduce("sum", wide * wide, dims, keepdim)), call.dtype)


LOWER: dict[str, Lowering] = {
    "aten.sum": _reduction("sum"),
    "aten.mean": _reduction("mean"),
    **{f"aten.adaptive_avg_pool{rank}d": _global_mean for rank in (1, 2, 3)},
    "aten.amax": _reduction("max"),
    "aten.amin": _reduction("min"),
    "aten.prod": _reduction("prod"),
    "aten.any": _reduction("any"),
    "aten.all": _reduction("all"),
    "aten.argmax": _position("argmax"),
    "aten.argmin": _position("argmin"),
    "aten.max": _extreme("max"),
    "aten.min": _extreme("min"),
    # Not var_mean and std_mean: the mean that PyTorch returns with them is rounded once, and NaN
    # where an infinity is followed by something.
    "aten.var": _variance,
    "aten.std": _variance,
    "aten.softmax": _softmax(decompositions.softmax),
    "aten.log_softmax": _softmax(decompositions.log_softmax),
    "aten._softmax": _softmax(decompositions.softmax),
    "aten._log_softmax": _softmax(decompositions.log_softmax),
    "aten.logsumexp": _logsumexp,
    "aten.linalg_vector_norm": _vector_norm,
    "aten.norm": _vector_norm,
}
