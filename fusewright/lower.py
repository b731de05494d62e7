"""One ATen call -> nodes of our IR: how each operator that we have kernels for is written with ours.

`LOWER` maps an ATen name (without its overload) to a function of a `Call`. A function may return None:
then, as for every name that is not in the table, the call becomes a visible library node.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fusewright import composite, formula
from fusewright.formula import Value, apply, cast, constant, fold, permute, reshape
from fusewright.ir import Batch, Node, Shape, node, numel, times
from fusewright.ops import OPS

HALF = (torch.float16, torch.bfloat16)
FLOATS = (torch.float32, torch.float64, *HALF)


@dataclass(frozen=True)
class Result:
    """What PyTorch says about one result of a call: shape, type, and the order of dimensions in memory."""

    shape: Shape
    dtype: torch.dtype
    order: tuple[int, ...]


@dataclass(frozen=True)
class Call:
    """One ATen call. Tensor arguments are Values; sizes that depend on the batch are Batch."""

    name: str
    overload: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    results: tuple[Result, ...]

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


Lowered = Value | tuple[Value | None, ...] | None


def lower(call: Call) -> Lowered:
    """Write one call with our operators, or return None if it has to stay a library call."""
    function = LOWER.get(call.name)
    supported = all(r.dtype in FLOATS or not r.dtype.is_complex for r in call.results)
    return function(call) if function and supported and not _quantised(call) else None


def _quantised(call: Call) -> bool:
    return any(isinstance(a, Value) and a.dtype.is_complex for a in call.args)


# ---- pointwise -----------------------------------------------------------------------------------


def _promoted(call: Call, dtype: torch.dtype, arguments: Sequence[Any]) -> list[Value]:
    return [cast(a, dtype) if isinstance(a, Value) else constant(a, dtype) for a in arguments]


def _common(arguments: Sequence[Any]) -> torch.dtype:
    """The type in which PyTorch compares these."""
    samples = [
        torch.empty((1,) * len(a.shape), dtype=a.dtype) if isinstance(a, Value) else a for a in arguments
    ]
    return torch.result_type(*samples)


def _map(op: str, arity: int) -> Callable[[Call], Lowered]:
    def build(call: Call) -> Lowered:
        arguments = call.args[:arity]
        if call.kwargs.get("rounding_mode") or len(call.args) > arity:
            return None
        dtype = _common(arguments) if OPS[op].result == "bool" else call.dtype
        return apply(op, *_promoted(call, dtype, arguments))

    return build


def _scaled(op: str) -> Callable[[Call], Lowered]:
    """add and sub: the second argument times alpha."""

    def build(call: Call) -> Lowered:
        a, b = _promoted(call, call.dtype, call.args[:2])
        alpha = call.get(2, "alpha", 1)
        return apply(op, a, b if alpha == 1 else b * alpha)

    return build


def _reversed_sub(call: Call) -> Lowered:
    a, b = _promoted(call, call.dtype, call.args[:2])
    alpha = call.get(2, "alpha", 1)
    return b - (a if alpha == 1 else a * alpha)


def _bitwise(op: str) -> Callable[[Call], Lowered]:
    def build(call: Call) -> Lowered:
        return None if call.dtype.is_floating_point else _map(op, 2)(call)

    return build


def _logical(op: str) -> Callable[[Call], Lowered]:
    def build(call: Call) -> Lowered:
        flags = [apply("ne", a, constant(0, a.dtype)) for a in call.args[:2]]
        return apply(op, *[f if a.dtype is not torch.bool else a for f, a in zip(flags, call.args)])

    return build


def _activation(name: str) -> Callable[[Call], Lowered]:
    def build(call: Call) -> Lowered:
        x = call.args[0]
        if x.dtype not in FLOATS:
            return None
        result = composite.ACTIVATIONS[name](x, *call.args[1:], **call.kwargs)
        return result if name != "aten.log_sigmoid_forward" else (result, None)

    return build


def _clamp(call: Call) -> Lowered:
    low, high = call.get(1, "min"), call.get(2, "max")
    x = cast(call.args[0], call.dtype)
    for op, bound in (("maximum", low), ("minimum", high)):
        if bound is not None:
            x = apply(op, x, *_promoted(call, call.dtype, [bound]))
    return x


def _where(call: Call) -> Lowered:
    condition, a, b = call.args
    if condition.dtype is not torch.bool:
        return None
    return apply("where", condition, *_promoted(call, call.dtype, [a, b]))


def _masked_fill(call: Call) -> Lowered:
    x, mask, value = call.args
    return apply("where", mask, *_promoted(call, call.dtype, [value]), x)


def _rounded_division(call: Call) -> Lowered:
    mode = call.kwargs.get("rounding_mode")
    a, b = _promoted(call, call.dtype, call.args[:2])
    if mode is None:
        return a / b
    if not call.dtype.is_floating_point or mode != "trunc":
        return None
    return apply("trunc", a / b)


def _prelu(call: Call) -> Lowered:
    x, weight = call.args
    rank = len(x.shape)
    shape: Shape = tuple(weight.shape[0] if i == 1 else 1 for i in range(rank)) if rank > 1 else (1,)
    return composite.where(x > 0.0, x, x * reshape(weight, shape)) if rank else None


def _addcmul(op: str) -> Callable[[Call], Lowered]:
    def build(call: Call) -> Lowered:
        x, a, b = _promoted(call, call.dtype, call.args[:3])
        value = call.kwargs.get("value", 1)
        term = apply(op, a, b)
        return x + (term if value == 1 else term * value)

    return build


def _lerp(call: Call) -> Lowered:
    a, b, weight = _promoted(call, call.dtype, call.args[:3])
    return a + weight * (b - a)


# ---- casts, copies, views ------------------------------------------------------------------------


def _to_copy(call: Call) -> Lowered:
    x = call.args[0]
    return copy(x) if x.dtype is call.dtype else cast(x, call.dtype, rounds=True)


def copy(x: Value) -> Value:
    """The same values in fresh memory."""
    return Value(node("copy", [x.node], shape=x.shape, dtype=x.dtype))


def _same(call: Call) -> Lowered:
    return call.args[0]  # type: ignore[no-any-return]


def _reshape(call: Call) -> Lowered:
    return reshape(call.args[0], call.shape)


def _transpose(call: Call) -> Lowered:
    x = call.args[0]
    rank = len(x.shape)
    i, j = (1, 0) if call.name == "aten.t" else (call.args[1] % rank, call.args[2] % rank)
    swap = {i: j, j: i}
    return permute(x, [swap.get(d, d) for d in range(rank)]) if rank > 1 else x


def _permute(call: Call) -> Lowered:
    return permute(call.args[0], call.args[1])


def _expand(call: Call) -> Lowered:
    x = call.args[0]
    missing = len(call.shape) - len(x.shape)
    return formula.expand(reshape(x, (1,) * missing + x.shape), call.shape)


def _full(call: Call) -> Lowered:
    value = {"aten.zeros": 0, "aten.ones": 1, "aten.zeros_like": 0, "aten.ones_like": 1}.get(call.name)
    value = call.args[1] if value is None else value
    scalar = constant(value, call.dtype)
    spread = formula.expand(reshape(scalar, (1,) * len(call.shape)), call.shape)
    return copy(spread)


# ---- folds ---------------------------------------------------------------------------------------


def trailing(x: Value, dims: Sequence[int]) -> bool:
    """Whether a fold over `dims` runs along the innermost dimension, so that rows lie together."""
    order = x.node.order or tuple(range(len(x.shape)))
    inner = [d for d in order if x.shape[d] != 1]
    return not inner or inner[-1] in {d % len(x.shape) for d in dims}


def _dims(x: Value, dims: object) -> tuple[int, ...]:
    """None and [] mean all dimensions."""
    rank = len(x.shape)
    chosen = (dims,) if isinstance(dims, int) else tuple(dims or ())  # type: ignore[arg-type]
    return tuple(sorted({int(d) % rank for d in chosen})) if chosen and rank else tuple(range(rank))


def _fold(op: str, position: int = 1) -> Callable[[Call], Lowered]:
    """Folds with arguments (x, dims, keepdim)."""

    def build(call: Call) -> Lowered:
        x: Value = call.args[0]
        dims = _dims(x, call.get(position, "dim"))
        if not x.shape or not trailing(x, dims) or numel(x.shape) == 0:
            return None
        x = cast(x, torch.bool if op in ("any", "all") else call.dtype)
        wide = composite.wide(x)
        return cast(fold(op, wide, dims, bool(call.get(position + 1, "keepdim", False))), call.dtype)

    return build


def _arg_fold(op: str) -> Callable[[Call], Lowered]:
    def build(call: Call) -> Lowered:
        x: Value = call.args[0]
        dims = _dims(x, call.get(1, "dim"))
        if not x.shape or not trailing(x, dims) or numel(x.shape) == 0:
            return None
        return fold(op, x, dims, bool(call.get(2, "keepdim", False)))

    return build


def _extreme(op: str) -> Callable[[Call], Lowered]:
    """max and min: of everything, of two tensors, or values and indices along a dimension."""

    def build(call: Call) -> Lowered:
        x: Value = call.args[0]
        if call.overload == "other":
            return _map({"max": "maximum", "min": "minimum"}[op], 2)(call)
        dims = _dims(x, call.get(1, "dim"))
        if not x.shape or not trailing(x, dims) or numel(x.shape) == 0:
            return None
        keepdim = bool(call.get(2, "keepdim", False))
        values = fold(op, x, dims, keepdim)
        return values if call.overload == "default" else (values, fold("arg" + op, x, dims, keepdim))

    return build


def _variance(call: Call) -> Lowered:
    x: Value = call.args[0]
    dims = _dims(x, call.get(1, "dim"))
    if not x.shape or not trailing(x, dims) or x.dtype not in FLOATS:
        return None
    correction = call.kwargs.get("correction", 1)
    keepdim = bool(call.kwargs.get("keepdim", False))
    wide = composite.wide(x)
    result = composite.variance(wide, dims, 1 if correction is None else correction, keepdim)
    result = apply("sqrt", result) if "std" in call.name else result
    result = cast(result, call.dtype)
    if "mean" not in call.name:
        return result
    return result, cast(fold("mean", wide, dims, keepdim), call.dtype)


def _softmax(function: Callable[[Value, Sequence[int]], Value]) -> Callable[[Call], Lowered]:
    def build(call: Call) -> Lowered:
        x: Value = call.args[0]
        if not x.shape or not trailing(x, [call.args[1]]) or x.dtype not in FLOATS:
            return None
        return cast(function(composite.wide(cast(x, call.dtype)), [call.args[1]]), call.dtype)

    return build


def _logsumexp(call: Call) -> Lowered:
    x: Value = call.args[0]
    dims = _dims(x, call.args[1])
    if not x.shape or not trailing(x, dims) or x.dtype not in FLOATS:
        return None
    keepdim = bool(call.get(2, "keepdim", False))
    return cast(composite.logsumexp(composite.wide(x), dims, keepdim), call.dtype)


def _vector_norm(call: Call) -> Lowered:
    x: Value = call.args[0]
    power = call.get(1, "ord", 2)
    dims = _dims(x, call.get(2, "dim"))
    if not x.shape or not trailing(x, dims) or power not in (1, 2) or x.dtype not in FLOATS:
        return None
    wide = composite.wide(x)
    keepdim = bool(call.get(3, "keepdim", False))
    if power == 1:
        return cast(fold("sum", apply("abs", wide), dims, keepdim), call.dtype)
    return cast(apply("sqrt", fold("sum", wide * wide, dims, keepdim)), call.dtype)


# ---- norms ---------------------------------------------------------------------------------------


def _wide(*values: Value | None) -> list[Value | None]:
    return [None if v is None else composite.wide(v) for v in values]


def _layer_norm(call: Call) -> Lowered:
    x: Value = call.args[0]
    dims = tuple(range(len(x.shape) - len(call.args[1]), len(x.shape)))
    if not trailing(x, dims):
        return None
    weight, bias = _wide(call.get(2, "weight"), call.get(3, "bias"))
    y, _, _ = composite.normalise(composite.wide(x), dims, call.get(4, "eps", 1e-5))
    return cast(composite.affine(y, weight, bias), call.dtype)


def _rms_norm(call: Call) -> Lowered:
    x: Value = call.args[0]
    dims = tuple(range(len(x.shape) - len(call.args[1]), len(x.shape)))
    if not trailing(x, dims):
        return None
    (weight,) = _wide(call.get(2, "weight"))
    given = call.get(3, "eps")
    eps = torch.finfo(x.dtype).eps if given is None else given
    wide = composite.wide(x)
    y = wide * apply("rsqrt", fold("mean", wide * wide, dims, keepdim=True) + eps)
    return cast(composite.affine(y, weight, None), call.dtype)


def _group_norm(call: Call) -> Lowered:
    x: Value = call.args[0]
    groups = int(call.args[1])
    if x.node.order or numel(x.shape) == 0:
        return None
    weight, bias = _wide(call.get(2, "weight"), call.get(3, "bias"))
    channels, rest = x.shape[1], numel(x.shape[2:])
    if isinstance(channels, Batch):
        return None
    grouped = reshape(composite.wide(x), (x.shape[0], groups, times(channels // groups, rest)))
    y, _, _ = composite.normalise(grouped, [2], call.get(4, "eps", 1e-5))
    y = reshape(y, x.shape)
    return cast(composite.affine(y, *_per_channel(y, weight, bias)), call.dtype)


def _per_channel(x: Value, *values: Value | None) -> list[Value | None]:
    """Parameters of shape [C] as [C, 1, …], to broadcast over dimension 1 of `x`."""
    ones = (1,) * (len(x.shape) - 2)
    return [None if v is None else reshape(v, v.shape + ones) for v in values]


def _instance_norm(call: Call) -> Lowered:
    x, weight, bias, _, _, use_input_statistics, _, eps = call.args[:8]
    dims = tuple(range(2, len(x.shape)))
    if not use_input_statistics or call.args[3] is not None or not trailing(x, dims):
        return None
    y, _, _ = composite.normalise(composite.wide(x), dims, eps)
    return cast(composite.affine(y, *_per_channel(y, *_wide(weight, bias))), call.dtype)


def _batch_norm_train(call: Call) -> Lowered:
    """(x, weight, bias, running mean, running variance, training, momentum, eps) -> result, saved
    mean, saved scale, new running mean, new running variance."""
    x, weight, bias, running_mean, running_var, training, momentum, eps = call.args
    dims = tuple(d for d in range(len(x.shape)) if d != 1)
    if not training or not trailing(x, dims):
        return None
    wide = composite.wide(x)
    y, mean, m2 = composite.normalise(wide, dims, eps)
    y = composite.affine(y, *_per_channel(y, *_wide(weight, bias)))
    mean = reshape(mean, running_mean.shape)
    unbiased = reshape(composite.variance(wide, dims, 1, keepdim=True), running_mean.shape)
    new_mean = momentum * cast(mean, running_mean.dtype) + (1 - momentum) * running_mean
    new_var = momentum * cast(unbiased, running_var.dtype) + (1 - momentum) * running_var
    return cast(y, call.dtype), None, None, new_mean, new_var


def _batch_norm_no_stats(call: Call) -> Lowered:
    """(x, weight, bias, training, momentum, eps): always the batch's own statistics."""
    x, weight, bias, training, _, eps = call.args
    dims = tuple(d for d in range(len(x.shape)) if d != 1)
    if not training or not trailing(x, dims):
        return None
    y, _, _ = composite.normalise(composite.wide(x), dims, eps)
    return cast(composite.affine(y, *_per_channel(y, *_wide(weight, bias))), call.dtype), None, None


def _batch_norm_eval(call: Call) -> Lowered:
    """(x, weight, bias, running mean, running variance, momentum, eps)."""
    x, weight, bias, mean, var, _, eps = call.args
    mean, var, weight, bias = _per_channel(x, *_wide(mean, var, weight, bias))
    assert mean is not None and var is not None
    y = (composite.wide(x) - mean) * apply("rsqrt", var + eps)
    return cast(composite.affine(y, weight, bias), call.dtype), None, None


# ---- the table -----------------------------------------------------------------------------------

_UNARY = """abs sign reciprocal square sqrt rsqrt floor ceil round trunc exp exp2 expm1 log log2 log10
log1p sin cos tan asin acos atan sinh cosh asinh acosh atanh tanh erf erfc sigmoid neg isnan isinf
isfinite logical_not""".split()
_BINARY = "mul pow remainder fmod atan2 maximum minimum eq ne lt le gt ge".split()
_VIEWS = "view reshape _unsafe_view flatten unsqueeze squeeze unflatten".split()

LOWER: dict[str, Callable[[Call], Lowered]] = {
    **{f"aten.{name}": _map(name, 1) for name in _UNARY},
    **{f"aten.{name}": _map(name, 2) for name in _BINARY},
    **{name: _activation(name) for name in composite.ACTIVATIONS},
    **{f"aten.{name}": _reshape for name in _VIEWS},
    **{f"aten.bitwise_{name}": _bitwise(f"bitwise_{name}") for name in ("and", "or", "xor")},
    **{f"aten.logical_{name}": _logical(f"bitwise_{name}") for name in ("and", "or", "xor")},
    **{name: _same for name in ("aten.alias", "aten.detach", "aten.lift_fresh_copy")},
    **{f"aten.{name}": _full for name in ("full", "zeros", "ones", "full_like", "zeros_like", "ones_like")},
    "aten.add": _scaled("add"),
    "aten.sub": _scaled("sub"),
    "aten.rsub": _reversed_sub,
    "aten.div": _rounded_division,
    "aten.clamp": _clamp,
    "aten.clamp_min": lambda call: apply("maximum", *_promoted(call, call.dtype, call.args[:2])),
    "aten.clamp_max": lambda call: apply("minimum", *_promoted(call, call.dtype, call.args[:2])),
    "aten.where": _where,
    "aten.masked_fill": _masked_fill,
    "aten.prelu": _prelu,
    "aten._prelu_kernel": lambda call: composite.where(
        call.args[0] > 0.0, call.args[0], call.args[0] * call.args[1]
    ),
    "aten.addcmul": _addcmul("mul"),
    "aten.addcdiv": _addcmul("div"),
    "aten.lerp": _lerp,
    "aten._to_copy": _to_copy,
    "aten.clone": lambda call: copy(call.args[0]),
    "aten.transpose": _transpose,
    "aten.t": _transpose,
    "aten.permute": _permute,
    "aten.expand": _expand,
    "aten.sum": _fold("sum"),
    "aten.mean": _fold("mean"),
    "aten.amax": _fold("max"),
    "aten.amin": _fold("min"),
    "aten.prod": _fold("prod"),
    "aten.any": _fold("any"),
    "aten.all": _fold("all"),
    "aten.argmax": _arg_fold("argmax"),
    "aten.argmin": _arg_fold("argmin"),
    "aten.max": _extreme("max"),
    "aten.min": _extreme("min"),
    **{f"aten.{name}": _variance for name in ("var", "std", "var_mean", "std_mean")},
    "aten.softmax": _softmax(composite.softmax),
    "aten._softmax": _softmax(composite.softmax),
    "aten.log_softmax": _softmax(composite.log_softmax),
    "aten._log_softmax": _softmax(composite.log_softmax),
    "aten.logsumexp": _logsumexp,
    "aten.linalg_vector_norm": _vector_norm,
    "aten.layer_norm": _layer_norm,
    "aten.rms_norm": _rms_norm,
    "aten.group_norm": _group_norm,
    "aten.instance_norm": _instance_norm,
    "aten._native_batch_norm_legit_functional": _batch_norm_train,
    "aten._native_batch_norm_legit": _batch_norm_no_stats,
    "aten._native_batch_norm_legit_no_training": _batch_norm_eval,
}


def reordered(value: Value, order: tuple[int, ...]) -> Value:
    """Give the last map the memory order that eager's result has."""
    n: Node = value.node
    if n.row.kind != "map" or order == n.order:
        return value
    return Value(node(n.op, n.args, shape=n.shape, dtype=n.dtype, order=order, **dict(n.attributes)))
