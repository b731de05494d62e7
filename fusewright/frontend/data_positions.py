"""`cache[:, pos] = k`, where `pos` is a tensor with one whole number -> a call with that tensor.

PyTorch takes such a position for a number of Python, and so it would have to be known while a graph
is made. `index_put_` with the tensor writes to the same places.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from fusewright.common.dtypes import INTEGERS

WHOLE = tuple(t for t in INTEGERS if t is not torch.uint8)  # bytes are a mask
FULL = slice(None)


class TensorPositions(TorchFunctionMode):
    """Within the block, what is assigned at such positions is assigned with the tensors."""

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        if func is Tensor.__setitem__:
            target, index, value = args
            found = positions(target, index)
            if found is not None:
                return _put(target, *found, value)
        return func(*args, **(kwargs or {}))


def positions(target: Tensor, index: object) -> tuple[list[Any], list[Tensor | None]] | None:
    """The plain part of an index, and the tensors for the dimensions that this leaves; None where
    no position is a tensor of one number, or something else than plain numbers and slices is."""
    parts = [*index] if isinstance(index, tuple) else [index]
    if not any(map(_is_position, parts)):
        return None
    if not all(_is_position(p) or p is Ellipsis or type(p) in (int, slice) for p in parts):
        return None
    missing = target.dim() - sum(p is not Ellipsis for p in parts)
    if missing < 0 or sum(p is Ellipsis for p in parts) > 1:
        return None
    at = next((k for k, p in enumerate(parts) if p is Ellipsis), len(parts))
    parts[at : at + 1] = [FULL] * missing
    if all(type(p) is not slice or p == FULL for p in parts):  # nothing need be cut out first
        return [], [_number(p, target.device) for p in parts]
    plain = [FULL if _is_position(p) else p for p in parts]
    return plain, [_number(p, target.device) for p in parts if type(p) is not int]


def _number(part: object, device: torch.device) -> Tensor | None:
    """The tensor for one dimension; None for all of it."""
    if isinstance(part, Tensor):  # of other types, `index_put_` takes none
        return part if part.dtype in (torch.int32, torch.int64) else part.long()
    return torch.tensor(part, device=device) if type(part) is int else None


def _is_position(part: object) -> bool:
    return isinstance(part, Tensor) and part.dim() == 0 and part.dtype in WHOLE


def _put(target: Tensor, plain: list[Any], found: list[Tensor | None], value: Any) -> None:
    place = target[tuple(plain)] if plain else target
    room = place.dim() - sum(t is not None for t in found)
    if not isinstance(value, Tensor):
        value = torch.full((), value, dtype=place.dtype, device=place.device)
    while value.dim() > room and value.shape[0] == 1:  # an assignment drops what it need not have
        value = value[0]
    torch.ops.aten.index_put_(place, found, value.to(place.dtype))
