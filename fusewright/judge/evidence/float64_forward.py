"""A forward that names precisions itself -> the same in float64: what it makes inside is cast, too.

The twin of a model has its parameters and inputs in float64, but a forward may name another type:
`x.float()`, `torch.arange(n, dtype=torch.float32)`, `w.to(torch.bfloat16)`. Here float32 stands for
float64, and complex64 for complex128. A 16-bit type is a rounding that the model has written down,
and stays one: either all of the model's arithmetic on such values is as it is written, or, where
that does not run beside float64, they are rounded where they are made, and calculated with in
float64. Bits are looked at in the width that the model has: the argument is rounded to it first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only

WIDER: Mapping[torch.dtype, torch.dtype] = {
    torch.float32: torch.float64, torch.complex64: torch.complex128,
    torch.complex32: torch.complex128,
}  # fmt: skip
HALVES = (torch.float16, torch.bfloat16)
_METHODS = {"float": torch.float64, "cfloat": torch.complex128}
_HALVING = (Tensor.half, Tensor.bfloat16)


class InDouble(TorchFunctionMode):
    """native: the model's own floating type; widened: 16-bit values, once rounded, are float64."""

    def __init__(self, native: torch.dtype, *, widened: bool) -> None:
        super().__init__()
        self._native, self._widened = native, widened

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if (name := getattr(func, "__name__", "")) in _METHODS:
            return args[0].to(_METHODS[name])
        named = [a for a in tree_leaves((args, kwargs)) if isinstance(a, torch.dtype)]
        if func is Tensor.view and named:
            return self._bits(*args, **kwargs)
        if name in ("nan_to_num", "nan_to_num_"):
            return func(*self._numbers(*args, **kwargs))
        if named:
            args, kwargs = tree_map_only(torch.dtype, lambda d: WIDER.get(d, d), (args, kwargs))
        result = func(*args, **kwargs)
        if self._widened and (func in _HALVING or any(d in HALVES for d in named)):
            return tree_map_only(Tensor, _from_half, result)
        return result

    def _numbers(
        self,
        input: Tensor,
        nan: float | None = None,
        posinf: float | None = None,
        neginf: float | None = None,
    ) -> tuple[Tensor, float, float, float]:
        """Arguments of `nan_to_num`: by default infinity becomes the model's own largest number."""
        limits = torch.finfo(self._native if input.dtype is torch.float64 else input.dtype)
        top = limits.max if posinf is None else posinf
        least = limits.min if neginf is None else neginf
        return input, nan or 0.0, top, least

    def _bits(self, t: Tensor, dtype: torch.dtype) -> Tensor:
        """A look at the bits: in the width of the model, and back to the twin's."""
        if t.dtype is torch.float64:
            t = t.to(self._native)
        elif t.dtype is torch.complex128 and self._native is torch.float32:
            t = t.to(torch.complex64)
        seen = t.view(dtype)
        return seen.to(WIDER[dtype]) if dtype in WIDER else _from_half(seen)


def _from_half(t: Tensor) -> Tensor:
    return t.double() if t.dtype in HALVES else t


def native(tensors: Sequence[Tensor]) -> torch.dtype:
    """The floating type of the first tensor that has one."""
    floats = (t for t in tensors if t.is_floating_point() or t.is_complex())
    first = next(floats, None)
    if first is None:
        return torch.get_default_dtype()
    return first.dtype.to_real() if first.is_complex() else first.dtype


Change = Callable[[Tensor], Tensor]


def on_parts(t: Tensor, change: Change) -> Tensor:
    """A change of real numbers, on the real and imaginary parts of complex ones."""
    if not t.is_complex():
        return change(t)
    return torch.view_as_complex(change(torch.view_as_real(t.resolve_conj())).contiguous())
