"""Integer outputs that are positions -> the values there: a position is right if its value is.

Which of several nearly equal values is the smallest, is decided by how they round, and an honest
kernel rounds otherwise. So eager and float64 run once more where a position differs, and somebody
notes from what the operators that return positions took them. Values that no arithmetic has touched
are the same for everybody: there, and in exact ties, the position must be eager's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

POSITIONS = (torch.int32, torch.int64)
SLACK = 4.0  # both values may be off by twice what eager's are
_NAMES = {
    "argmax", "argmin", "max", "min", "sort", "argsort", "topk", "median", "nanmedian", "kthvalue",
}  # fmt: skip


@dataclass(frozen=True)
class Taken:
    """What an operator took positions from, and along which dimension."""

    positions: Tensor
    values: Tensor
    dim: int | None


# For every output, from what eager and float64 took it, if it is a position.
Places = Callable[[], list[tuple[Taken, Taken] | None]]


class Notes(TorchFunctionMode):
    """Notes every operator that returns positions."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: list[Taken] = []

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        if name in _NAMES and args and isinstance(args[0], Tensor):
            found = result if isinstance(result, Tensor) else getattr(result, "indices", None)
            if isinstance(found, Tensor) and not found.is_floating_point():
                place = 2 if name in ("topk", "kthvalue") else 1
                default = None if name in ("argmax", "argmin") else -1
                dim = kwargs.get("dim", args[place] if len(args) > place else default)
                if dim is None or isinstance(dim, int):
                    self.taken.append(Taken(found, args[0].detach().clone(), dim))
        return result


def noted(run: Callable[[], Sequence[Tensor]]) -> list[Taken | None]:
    """For every output of a run, from what it was taken, if it is a position."""
    with Notes() as notes:
        outputs = run()
    return [next((n for n in notes.taken if _is(n.positions, t)), None) for t in outputs]


def both(
    low: Sequence[Taken | None], high: Sequence[Taken | None]
) -> list[tuple[Taken, Taken] | None]:
    pairs = zip(low, high, strict=True)
    return [(a, b) if a is not None and b is not None else None for a, b in pairs]


def _is(a: Tensor, b: Tensor) -> bool:
    return a.data_ptr() == b.data_ptr() and a.numel() == b.numel() and a.dtype == b.dtype


def wrong(found: Tensor, eager: Tensor, exact: Tensor, taken: tuple[Taken, Taken]) -> Tensor:
    """Which of the candidate's positions hold another value than the best one.

    taken: what eager's and float64's positions were taken from.
    """
    low, high = (_rows(t.values, t.dim).double() for t in taken)
    shape = taken[1].positions.shape
    c, e, y = (_rows(t.reshape(shape), _kept(taken[1])) for t in (found, eager, exact))
    inside = (c >= 0) & (c < high.shape[-1])
    usable = torch.where(inside, c, y)
    error = (low - high).abs().nan_to_num(0.0, 0.0, 0.0)
    usual = error.square().mean(-1, keepdim=True).sqrt()
    computed = (usual > 0).to(high.dtype)
    off = torch.stack([error.gather(-1, at) for at in (usable, e, y)]).amax(0)
    there, best = high.gather(-1, usable), high.gather(-1, y)
    unit = torch.finfo(taken[0].values.dtype).eps / 2 if low.numel() else 0.0
    unit_size = computed * unit * best.abs()
    near = (there - best).abs() <= SLACK * (torch.maximum(off, usual * computed) + unit_size)
    moved = inside & near & (there != best)
    twice = c.sort(-1).values.diff(dim=-1).eq(0).any(-1, keepdim=True)  # one position for two
    return ~((c == e) | (c == y) | moved & ~twice).reshape(-1)


def _kept(taken: Taken) -> int | None:
    """The dimension of several positions a row; None where there is one."""
    values, positions, dim = taken.values, taken.positions, taken.dim
    if dim is None or positions.ndim < values.ndim:
        return None if dim is None else -99
    return dim


def _rows(t: Tensor, dim: int | None) -> Tensor:
    """The dimension last; -99: one a row, without a dimension; None: all is one row."""
    if dim is None:
        return t.reshape(1, -1)
    if dim == -99:
        return t.reshape(-1, 1)
    moved = t.movedim(dim, -1) if t.ndim else t.reshape(1)
    return moved.reshape(-1, moved.shape[-1])
