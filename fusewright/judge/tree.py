"""Arguments of a model -> the tensors in them, or the same arguments with each tensor replaced."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from fusewright.calling import like
from fusewright.containers import kind_of


def tensors(value: object) -> Iterator[Tensor]:
    """All tensors in containers, in order."""
    if isinstance(value, Tensor):
        yield value
    elif kind := kind_of(value):
        for _, item in kind.parts(value):
            yield from tensors(item)


def mapped(inputs: Sequence[object], change: Callable[[Tensor], Tensor]) -> list[object]:
    """The arguments with each tensor replaced by a changed leaf; everything else as it is."""

    def walk(value: Any) -> Any:
        if isinstance(value, Tensor):
            return change(value.detach()).requires_grad_(value.requires_grad)
        kind = kind_of(value)
        if kind is None:
            return value
        keys, items = zip(*kind.parts(value), strict=True) if kind.parts(value) else ((), ())
        return kind.make(type(value), kind.extra(value), keys, [walk(item) for item in items])

    return like(inputs, [walk(value) for value in inputs])


def upcast(t: Tensor) -> Tensor:
    """The same value in double precision; integers and booleans are copied as they are."""
    wide = t.double() if t.is_floating_point() else t
    wide = t.to(torch.complex128) if t.is_complex() else wide
    return wide.clone() if wide is t else wide
