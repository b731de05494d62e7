"""Arguments of a model -> the tensors in them, or the same arguments with each tensor replaced."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import Tensor


def tensors(value: object) -> Iterator[Tensor]:
    """All tensors in lists, tuples and dictionaries, in order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors(item)


def mapped(inputs: Sequence[object], change: Callable[[Tensor], Tensor]) -> list[object]:
    """The arguments with each tensor replaced by a changed leaf; everything else as it is."""

    def walk(value: Any) -> Any:
        if isinstance(value, Tensor):
            return change(value.detach()).requires_grad_(value.requires_grad)
        if isinstance(value, dict):
            return {key: walk(item) for key, item in value.items()}
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*(walk(item) for item in value))
        if isinstance(value, (list, tuple)):
            return type(value)(walk(item) for item in value)
        return value

    return [walk(value) for value in inputs]


def upcast(t: Tensor) -> Tensor:
    """The same value in double precision; integers and booleans are copied as they are."""
    wide = t.double() if t.is_floating_point() else t
    return wide.clone() if wide is t else wide
