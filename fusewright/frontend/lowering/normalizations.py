"""ATen calls that normalise -> mean, m2 and a scale, with the affine parameters behind.

A normalisation becomes the reductions and the arithmetic that its definition names, so that the
planner can fuse both with what stands before and behind; train-mode statistics are results, too.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from fusewright.frontend.lowering.call import AtenCall, Lowered, wide
from fusewright.ir import decompositions
from fusewright.ir.builder import TensorExpr, cast, pointwise, reduce, reshape
from fusewright.ir.graph import BatchSize, numel, times


def _layer_norm(call: AtenCall) -> Lowered:
    made = _layer_norm_with_statistics(call)
    return made[0] if isinstance(made, tuple) else None


def _layer_norm_with_statistics(call: AtenCall) -> Lowered:
    """Result, mean and scale, as the forward pass leaves them to the backward pass."""
    x: TensorExpr = call.args[0]
    dims = tuple(range(len(x.shape) - len(call.args[1]), len(x.shape)))
    if not call.reduces(x, dims):
        return None
    weight, bias = wide([call.get(2, "weight"), call.get(3, "bias")])
    y, mean, scale = decompositions.normalise(
        decompositions.wide(x), dims, call.get(4, "eps", 1e-5), shifted=False
    )
    return cast(decompositions.affine(y, weight, bias), call.dtype), *_saved(call, mean, scale)


def _saved(call: AtenCall, *statistics: TensorExpr) -> tuple[TensorExpr, ...]:
    """Statistics as the call returns them behind its result; none where it does not."""
    asked = call.results[1 : 1 + len(statistics)]
    return tuple(
        reshape(cast(s, said.dtype), said.shape) for s, said in zip(statistics, asked, strict=False)
    )


def _rms_norm(call: AtenCall) -> Lowered:
    x: TensorExpr = call.args[0]
    dims = tuple(range(len(x.shape) - len(call.args[1]), len(x.shape)))
    if not call.reduces(x, dims):
        return None
    (weight,) = wide([call.get(2, "weight")])
    inner = decompositions.wide(x)
    given = call.get(3, "eps")
    eps = torch.finfo(inner.dtype).eps if given is None else given
    y = inner * pointwise("rsqrt", reduce("mean", inner * inner, dims, keepdim=True) + eps)
    return cast(decompositions.affine(y, weight, None), call.dtype)


def _group_norm(call: AtenCall) -> Lowered:
    """(x, groups, weight, bias, eps)."""
    about = int(call.args[1]), call.get(2, "weight"), call.get(3, "bias"), call.get(4, "eps", 1e-5)
    made = _in_groups(call, *about)
    return made[0] if isinstance(made, tuple) else None


def _group_norm_with_statistics(call: AtenCall) -> Lowered:
    """(x, weight, bias, batch, channels, rest, groups, eps): result, mean and scale."""
    _, weight, bias, _, _, _, groups, eps = call.args
    return _in_groups(call, int(groups), weight, bias, eps)


def _in_groups(
    call: AtenCall, groups: int, weight: TensorExpr | None, bias: TensorExpr | None, eps: float
) -> Lowered:
    x: TensorExpr = call.args[0]
    channels, rest = x.shape[1], numel(x.shape[2:])
    if x.node.order or isinstance(channels, BatchSize):
        return None
    weight, bias = wide([weight, bias])
    grouped = reshape(decompositions.wide(x), (x.shape[0], groups, times(channels // groups, rest)))
    y, mean, scale = decompositions.normalise(grouped, [2], eps)
    y = reshape(y, x.shape)
    y = cast(decompositions.affine(y, *_per_channel(y, weight, bias)), call.dtype)
    return y, *_saved(call, mean, scale)


def _per_channel(x: TensorExpr, *values: TensorExpr | None) -> list[TensorExpr | None]:
    """Parameters of shape [C] as [C, 1, …], to broadcast over dimension 1 of `x`."""
    ones = (1,) * (len(x.shape) - 2)
    return [None if v is None else reshape(v, v.shape + ones) for v in values]


def _instance_norm(call: AtenCall) -> Lowered:
    x, weight, bias, running_mean, _, use_input_statistics, _, eps = call.args[:8]
    dims = tuple(range(2, len(x.shape)))
    if not use_input_statistics or running_mean is not None or not call.reduces(x, dims):
        return None
    y, _, _ = decompositions.normalise(decompositions.wide(x), dims, eps)
    return cast(decompositions.affine(y, *_per_channel(y, *wide([weight, bias]))), call.dtype)


def _batch_norm_train(call: AtenCall) -> Lowered:
    """(x, weight, bias, running mean, running variance, training, momentum, eps) -> result, saved
    mean, saved scale, new running mean, new running variance."""
    x, weight, bias, running_mean, running_var, training, momentum, eps = call.args
    dims = tuple(d for d in range(len(x.shape)) if d != 1)
    if not training or not call.reduces(x, dims):
        return None
    inner = decompositions.wide(x)
    y, mean, scale = decompositions.normalise(inner, dims, eps)
    y = decompositions.affine(y, *_per_channel(y, *wide([weight, bias])))
    saved = _saved(call, mean, scale) if numel(call.results[1].shape) else (None, None)
    mean = reshape(mean, running_mean.shape)
    unbiased = reshape(decompositions.variance(inner, dims, 1, keepdim=True), running_mean.shape)
    new_mean = _moved(running_mean, mean, momentum)
    new_var = _moved(running_var, unbiased, momentum)
    return cast(y, call.dtype), *saved, new_mean, new_var


def _moved(running: TensorExpr, seen: TensorExpr, momentum: float) -> TensorExpr:
    """A running statistic behind a batch, calculated in float64 and so rounded once."""
    old, new = cast(running, torch.float64), cast(seen, torch.float64)
    return cast(momentum * new + (1 - momentum) * old, running.dtype)


def _batch_norm_no_stats(call: AtenCall) -> Lowered:
    """(x, weight, bias, training, momentum, eps): always the batch's own statistics."""
    x, weight, bias, training, _, eps = call.args
    dims = tuple(d for d in range(len(x.shape)) if d != 1)
    if not training or not call.reduces(x, dims):
        return None
    y, _, _ = decompositions.normalise(decompositions.wide(x), dims, eps)
    return (
        cast(decompositions.affine(y, *_per_channel(y, *wide([weight, bias]))), call.dtype),
        None,
        None,
    )


def _batch_norm_eval(call: AtenCall) -> Lowered:
    """(x, weight, bias, running mean, running variance, momentum, eps)."""
    x, weight, bias, mean, var, _, eps = call.args
    mean, var, weight, bias = _per_channel(x, *wide([mean, var, weight, bias]))
    assert mean is not None, "eval mode without statistics is another call"
    assert var is not None, "the variance comes with the mean"
    scale = pointwise("rsqrt", var + eps)
    y = pointwise("normalised", decompositions.wide(x), mean, 1.0, scale)
    return cast(decompositions.affine(y, weight, bias), call.dtype), None, None


LOWER: dict[str, Callable[[AtenCall], Lowered]] = {
    "aten.layer_norm": _layer_norm,
    "aten.native_layer_norm": _layer_norm_with_statistics,
    "aten.native_group_norm": _group_norm_with_statistics,
    "aten.rms_norm": _rms_norm,
    "aten.group_norm": _group_norm,
    "aten.instance_norm": _instance_norm,
    "aten._native_batch_norm_legit_functional": _batch_norm_train,
    "aten._native_batch_norm_legit": _batch_norm_no_stats,
    "aten._native_batch_norm_legit_no_training": _batch_norm_eval,
}
