"""How composite operators are written with ours: activations, norms, softmax, losses as formulas.

`FORMULAS` maps an ATen name to a formula of its tensors and numbers; the other functions are used
by `lower`. Every formula follows the one PyTorch computes, so that 0, inf and NaN come out alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from fusewright.ir.builder import (
    TensorExpr,
    cast,
    constant,
    count,
    pointwise,
    reduce,
    reshape,
    where,
)
from fusewright.ir.graph import BatchSize, Size

SQRT_HALF = 0.7071067811865476
SQRT_2_OVER_PI = 0.7978845608028654
SELU_ALPHA = 1.6732632423543772  # Klambauer et al. 2017, as in torch.nn.SELU
SELU_SCALE = 1.0507009873554805


def clamp(x: TensorExpr, low: float | None = None, high: float | None = None) -> TensorExpr:
    """min(max(x, low), high), NaN stays NaN, and so does a zero that equals a bound."""
    x = x if low is None else pointwise("maximum", low, x)
    return x if high is None else pointwise("minimum", high, x)


def gelu(x: TensorExpr, approximate: str = "none") -> TensorExpr:
    """x times the normal distribution function, exact or by tanh."""
    if approximate == "tanh":
        inner = SQRT_2_OVER_PI * (x + 0.044715 * (x * x * x))
        return 0.5 * x * (1.0 + pointwise("tanh", inner))
    return x * 0.5 * (1.0 + pointwise("erf", x * SQRT_HALF))


def softplus(x: TensorExpr, beta: float = 1.0, threshold: float = 20.0) -> TensorExpr:
    """log(1 + exp(beta x)) / beta, the identity beyond the threshold."""
    soft = pointwise("log1p", pointwise("exp", x * beta)) / beta
    return where(x * beta > threshold, x, soft)


def elu(
    x: TensorExpr, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0
) -> TensorExpr:
    """scale x for x > 0, else scale alpha (exp(input_scale x) - 1)."""
    return where(x > 0.0, x * scale, pointwise("expm1", x * input_scale) * (alpha * scale))


def hardtanh(x: TensorExpr, low: float = -1.0, high: float = 1.0) -> TensorExpr:
    """Clamp between two numbers."""
    return clamp(x, low, high)


def log_sigmoid(x: TensorExpr) -> TensorExpr:
    """min(x, 0) - log(1 + exp(-|x|))."""
    return pointwise("minimum", x, 0.0) - pointwise("log1p", pointwise("exp", -pointwise("abs", x)))


FORMULAS: dict[str, Callable[..., TensorExpr]] = {
    "aten.relu": lambda x: pointwise("relu", x),
    "aten.relu6": lambda x: clamp(x, 0.0, 6.0),
    "aten.gelu": gelu,
    "aten.silu": lambda x: x * pointwise("sigmoid", x),
    "aten.mish": lambda x: x * pointwise("tanh_softplus", x),
    "aten.softplus": softplus,
    "aten.log_sigmoid": log_sigmoid,
    "aten.elu": elu,
    "aten.celu": lambda x, alpha=1.0: elu(x, alpha, 1.0, 1.0 / alpha),
    "aten.selu": lambda x: elu(x, SELU_ALPHA, SELU_SCALE),
    "aten.hardtanh": hardtanh,
    # A factor between 0 and 1 keeps what is beyond 3 to the bit, where x * 6 / 6 rounds twice.
    "aten.hardswish": lambda x: x * (clamp(x + 3.0, 0.0, 6.0) / 6.0),
    "aten.hardsigmoid": lambda x: clamp(x + 3.0, 0.0, 6.0) / 6.0,
    "aten.leaky_relu": lambda x, slope=0.01: where(x > 0.0, x, x * slope),
    "aten.threshold": lambda x, limit, value: where(x <= limit, value, x),
    "aten.logit": lambda x, eps=None: _logit(x, eps),
}


def _logit(x: TensorExpr, eps: float | None) -> TensorExpr:
    z = x if eps is None else clamp(x, eps, 1.0 - eps)
    return pointwise("log", z / (1.0 - z))


def softmax(x: TensorExpr, dims: Sequence[int]) -> TensorExpr:
    """exp(x - max) / sum."""
    e = pointwise("exp", x - reduce("max", x, dims, keepdim=True))
    return e / reduce("sum", e, dims, keepdim=True)


def log_softmax(x: TensorExpr, dims: Sequence[int]) -> TensorExpr:
    """x - max - log(sum(exp(x - max)))."""
    shifted = x - reduce("max", x, dims, keepdim=True)
    return shifted - pointwise("log", reduce("sum", pointwise("exp", shifted), dims, keepdim=True))


def logsumexp(x: TensorExpr, dims: Sequence[int], keepdim: bool = False) -> TensorExpr:
    """log(sum(exp(x))), shifted by the maximum where that is finite."""
    top = reduce("max", x, dims, keepdim=True)
    shift = where(pointwise("isinf", top), 0.0, top)
    total = pointwise("log", reduce("sum", pointwise("exp", x - shift), dims, keepdim=True)) + shift
    kept = tuple(s for i, s in enumerate(x.shape) if i not in {d % len(x.shape) for d in dims})
    return total if keepdim else reshape(total, kept)


def variance(
    x: TensorExpr, dims: Sequence[int], correction: float, keepdim: bool = False
) -> TensorExpr:
    """m2 / (n - correction)."""
    return reduce("m2", x, dims, keepdim) / _number(x, count(x, dims), correction)


def _number(like: TensorExpr, n: Size, correction: float = 0.0) -> TensorExpr | float:
    if isinstance(n, BatchSize):
        total = constant(n, like.dtype)
        return total - correction if correction else total
    return max(float(n) - correction, 0.0)


def normalise(
    x: TensorExpr, dims: Sequence[int], eps: float, *, shifted: bool = True
) -> tuple[TensorExpr, TensorExpr, TensorExpr]:
    """(x - mean) / sqrt(variance + eps); also the mean and 1 / sqrt(...), dimensions kept.

    shifted: whether PyTorch's own norm on a CPU is x scale + shift, which rounds once.
    """
    mean, m2 = reduce("mean", x, dims, keepdim=True), reduce("m2", x, dims, keepdim=True)
    scale = pointwise("rsqrt", m2 / _number(x, count(x, dims)) + eps)
    y = pointwise("normalised", x, mean, m2, scale) if shifted else (x - mean) * scale
    return y, mean, scale


def affine(x: TensorExpr, weight: TensorExpr | None, bias: TensorExpr | None) -> TensorExpr:
    """x weight + bias, either may be absent; nothing of the model's lies between the two."""
    if weight is not None and bias is not None:
        return pointwise("fma", x, weight, bias)
    x = x if weight is None else x * weight
    return x if bias is None else x + bias


def wide(x: TensorExpr) -> TensorExpr:
    """Half types are computed in float32."""
    return cast(x, torch.float32) if x.dtype in (torch.float16, torch.bfloat16) else x
