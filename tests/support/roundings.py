"""A model's own answer, had its sums been added in another order and its functions been rounded
otherwise: how far each result moves, and where it is another one altogether.

Two programs that both calculate as they should differ so: a sum of n terms has n - 1 roundings, of
which each order makes others, and an exponential is right to a unit or two. Sums, products, minima
and choices of single numbers are rounded once, to one value, and are left alone; so `x * s` is the
same wherever a model reads it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

DRAWS = 24
# Calls whose result is a sum of products or of numbers: it errs by roundings of their magnitudes.
SUMS = frozenset(
    f"aten::{name}"
    for name in (
        *("sum", "mean", "cumsum", "mm", "bmm", "addmm", "baddbmm", "addmv", "mv", "dot"),
        *("linear", "matmul", "convolution", "einsum", "_adaptive_avg_pool2d", "avg_pool2d"),
        *("avg_pool1d", "avg_pool3d", "logcumsumexp"),
    )
)
# Calls whose result errs by roundings of its own.
FUNCTIONS = frozenset(
    f"aten::{name}"
    for name in (
        *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "tanh", "sigmoid", "erf"),
        *("erfc", "sin", "cos", "tan", "sinh", "cosh", "asin", "acos", "atan", "asinh", "acosh"),
        *("atanh", "pow", "gelu", "silu", "mish", "elu", "celu", "selu", "softplus", "log_sigmoid"),
        *("log_sigmoid_forward", "hardswish", "hardsigmoid", "sqrt", "rsqrt", "div", "reciprocal"),
        *("_softmax", "_log_softmax", "logsumexp", "norm", "linalg_vector_norm", "prod"),
        *("cumprod", "xlogy", "logaddexp", "lerp", "addcmul", "addcdiv"),
        *("cosine_similarity", "_scaled_dot_product_flash_attention_for_cpu", "sinc", "logit"),
        *("_scaled_dot_product_attention_math", "_scaled_dot_product_efficient_attention"),
        *("_scaled_dot_product_flash_attention", "erfinv", "lgamma", "digamma", "atan2", "hypot"),
    )
)
# Logarithms of sums that are at least 1: near 1, the sum's rounding is larger than they are.
LOGARITHMS = frozenset({"aten::_log_softmax"})
# Calls that subtract a mean, which errs by roundings of what it is the mean of.
CENTERED = frozenset(
    f"aten::{name}"
    for name in (
        *("var", "std", "var_mean", "std_mean", "native_layer_norm", "native_group_norm"),
        *("native_batch_norm", "_native_batch_norm_legit", "_fused_rms_norm", "rms_norm"),
        *("_native_batch_norm_legit_no_training", "batch_norm", "cudnn_batch_norm"),
    )
)
# Calls that a chain of 16-bit operators need not round.
CHAINED = frozenset(f"aten::{name}" for name in ("add", "sub", "mul", "neg", "square"))


class Otherwise(TorchDispatchMode):
    """Calls within give what other programs might, drawn from `seed`."""

    def __init__(self, seed: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.draws, self.alike = torch.Generator().manual_seed(seed), bool(seed % 2)

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs, name = kwargs or {}, func.name().partition(".")[0]
        result = func(*args, **kwargs)
        if name in CENTERED:
            made = [t for t in pytree.tree_leaves(result) if t.numel()]  # means, too, or like them
            chain = _chain(args[0], min(made, key=torch.Tensor.numel, default=result))
            return func(self._moved(args[0], args[0], chain), *args[1:], **kwargs)
        if name in FUNCTIONS or (name in CHAINED and _is_half(result)):
            least = 1.0 if name in LOGARITHMS else 0.0
            return pytree.tree_map(
                lambda t: self._moved(t, t.abs() + least, _chain(args[0], t)), result
            )
        if name in SUMS and isinstance(result, torch.Tensor):
            sizes = pytree.tree_map(_magnitude, (args, kwargs))
            return self._moved(result, func(*sizes[0], **sizes[1]), _chain(args[0], result))
        return result

    def _steps(self, value: torch.Tensor) -> torch.Tensor:
        """-1, 0 or 1 for each element; of every second seed the same for equal ones: the same
        arguments are rounded the same way wherever they stand."""
        if not self.alike:
            return torch.randint(-1, 2, value.shape, generator=self.draws).to(value.device)
        different, which = torch.unique(value, return_inverse=True)
        return torch.randint(-1, 2, different.shape, generator=self.draws).to(value.device)[which]

    def _moved(self, value: object, size: object, roundings: float = 1.0) -> object:
        if not (isinstance(value, torch.Tensor) and isinstance(size, torch.Tensor)):
            return value
        if not value.is_floating_point():
            return value
        steps = self._steps(value)
        unit = roundings * torch.finfo(value.dtype).eps
        moved = value + size * (steps * unit).to(value.dtype)
        return torch.where(moved.isfinite(), moved, value).to(value.dtype)


def _chain(given: object, made: object) -> float:
    """How many roundings of its size a reduction in float64 may have, of which nothing wider can
    judge.

    PyTorch adds the terms of some norms one after the other, in eight lanes.
    """
    if not (isinstance(given, torch.Tensor) and isinstance(made, torch.Tensor)):
        return 1.0
    if made.dtype is not torch.float64:
        return 1.0
    return max(1.0, given.numel() / max(1, made.numel()) / 8)


def _is_half(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype in (torch.float16, torch.bfloat16)


def _magnitude(value: object) -> object:
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return value.abs()
    return value


def opened(
    run: Callable[[nn.Module, Sequence[object]], list[torch.Tensor]],
    module: nn.Module,
    inputs: Sequence[object],
    results: Sequence[torch.Tensor],
    error: Callable[[torch.Tensor, torch.Tensor], float],
) -> tuple[list[float], list[torch.Tensor]]:
    """How far each result moves, and where it is NaN, infinite, or an integer that is another one.

    run: calls a module. error: of a tensor, given the right one.
    """
    moves, unsure = [0.0] * len(results), [torch.zeros_like(r, dtype=torch.bool) for r in results]
    for seed in range(DRAWS):
        with Otherwise(seed):
            others = run(copy.deepcopy(module), copy.deepcopy(list(inputs)))
        for k, (other, result) in enumerate(zip(others, results, strict=True)):
            if other.shape != result.shape or other.is_complex():
                continue
            if result.is_floating_point():
                unsure[k] |= other.isfinite() != result.isfinite()
                kept = ~unsure[k]
                moves[k] = max(moves[k], error(other[kept], result[kept]))
            else:
                unsure[k] |= other != result
    return moves, unsure
