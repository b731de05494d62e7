"""Extremes of zeros of both signs -> what eager says if such an extreme has the other sign.

The largest of +0 and -0 is either: PyTorch keeps the one that it meets first or last, which depends
on how it shares a row among threads and vectors. A model can make that sign visible (`signbit`,
`copysign`, `atan2`, a reciprocal). There, both answers are right; where a row has zeros of one sign
only, its extreme has that sign for everybody. The sign of a NaN means nothing, so it is free, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_EXTREMES = {"amax", "amin", "max", "min", "maximum", "minimum", "aminmax"}


class OtherZeros(TorchFunctionMode):
    """Gives extremes that are 0, of rows with zeros of both signs, or NaN the other sign."""

    def __init__(self) -> None:
        super().__init__()
        self.found = False

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if getattr(func, "__name__", "") not in _EXTREMES or not isinstance(args[0], Tensor):
            return result
        if not args[0].is_floating_point():
            return result
        mixed = _mixed(*args, **kwargs)
        self.found |= bool(mixed.any())
        if isinstance(result, Tensor):
            return _turned(result, mixed)
        turned = [_turned(t, mixed) if t.is_floating_point() else t for t in result]
        return type(result)(turned)


def with_other_zeros(run: Callable[[], Sequence[Tensor]]) -> Sequence[Tensor] | None:
    """The outputs of a run in which such zeros have the other sign; None if there are none."""
    with OtherZeros() as mode:
        outputs = run()
    return outputs if mode.found else None


def as_eager(output: Tensor, eager: Tensor, other: Tensor) -> Tensor:
    """The output with eager's answer wherever it is the one that the other sign gives."""
    if output.shape != eager.shape or other.shape != eager.shape:
        return output
    return torch.where((eager != other) & (output == other), eager, output)


def _mixed(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """For each row whether the sign of an extreme that is 0 or NaN is free."""
    second = args[0] if args else kwargs.get("other", kwargs.get("dim"))
    if isinstance(second, Tensor):
        zeros = (x == 0) & (second == 0) & (x.signbit() != second.signbit())
        pairs: Tensor = zeros | x.isnan() | second.isnan()
        return pairs
    keepdim = bool(args[1] if len(args) > 1 else kwargs.get("keepdim", False))
    dims = tuple(range(x.ndim)) if second is None or second == () else second
    signs = [(x == 0) & (x.signbit() if minus else ~x.signbit()) for minus in (False, True)]
    if not x.ndim:
        alone: Tensor = x.isnan()
        return alone
    plus, minus, nan = (torch.any(s, dims, keepdim=keepdim) for s in (*signs, x.isnan()))
    free: Tensor = (plus & minus) | nan
    return free


def _turned(t: Tensor, mixed: Tensor) -> Tensor:
    return torch.where(mixed & ((t == 0) | t.isnan()), -t, t)
