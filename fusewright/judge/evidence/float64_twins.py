"""State -> the same tensors in float64, exact or moved by roundings; kept, since they come again.

Parameters stay the same over many calls, and converting hundreds of megabytes of them, or drawing
a perturbation for each, costs more than running the model. What is kept is bounded in bytes; the
tensors are only read, and one that was written to all the same is made anew.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fusewright.judge.evidence.float64_forward import on_parts
from fusewright.judge.evidence.pytree import upcast
from fusewright.judge.evidence.tied_tensors import each

SMALL = 1 << 16  # elements below which a copy costs less than keeping one
# Large tensors take their draws from a pool of so many, over and over. A prime: no row or column
# of a matrix meets the same draws at the same places again.
POOL = 1_048_583


@dataclass(frozen=True)
class _Kept:
    source: Tensor
    made: Tensor
    versions: tuple[int, int]

    @property
    def valid(self) -> bool:
        return (self.source._version, self.made._version) == self.versions


class Doubles:
    """Float64 twins of a state's tensors; `room` bytes of them are kept, none by default."""

    def __init__(self, seed: int = 0, room: int = 0) -> None:
        self._seed = seed
        self._room = room
        self._kept: dict[tuple[int, float, int], _Kept] = {}

    def exact(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return each(state, lambda _, t: self._get(t, 0.0, 0, upcast))

    def moved(self, state: Mapping[str, Tensor], size: float, pair: int) -> dict[str, Tensor]:
        """x (1 + size d); d is the same for `size` and `-size`."""
        return each(state, lambda name, t: self._moved(name, t, size, pair))

    def _moved(self, name: str, t: Tensor, size: float, pair: int) -> Tensor:
        if not (t.is_floating_point() or t.is_complex()):
            return upcast(t)
        seed = self._seed * 1000 + pair + (zlib.crc32(name.encode()) << 20)
        return self._get(t, size, pair, lambda x: shaken(x, size, generator(x, seed)))

    def _get(self, t: Tensor, size: float, pair: int, make: Callable[[Tensor], Tensor]) -> Tensor:
        if t.numel() < SMALL or not self._room:
            return make(t.detach())
        key = (id(t), size, pair)
        kept = self._kept.pop(key, None)
        if kept is None or kept.source is not t or not kept.valid:
            made = make(t.detach())
            kept = _Kept(t, made, (t._version, made._version))
        if kept.made.nbytes <= self._room:
            self._kept[key] = kept  # the last used is the last to go
        while sum(k.made.nbytes for k in self._kept.values()) > self._room:
            self._kept.pop(next(iter(self._kept)))
        return kept.made


def shaken(t: Tensor, size: float, draws: torch.Generator) -> Tensor:
    """x (1 + size d) in float64, d uniform with variance 1; for each part of a complex number."""
    if t.is_complex():
        return on_parts(t, lambda x: shaken(x, size, draws))
    factors = torch.empty(min(t.numel(), POOL), dtype=torch.float64, device=t.device)
    factors.uniform_(-math.sqrt(3), math.sqrt(3), generator=draws).mul_(size).add_(1.0)
    return scaled(t, factors)


def scaled(t: Tensor, factors: Tensor) -> Tensor:
    """t times the factors, over and over, in their type."""
    made = torch.empty(t.numel(), dtype=factors.dtype, device=t.device)
    flat, pool = t.reshape(-1), max(factors.numel(), 1)
    for start in range(0, t.numel(), pool):
        part = flat[start : start + pool]
        torch.mul(part, factors[: part.numel()], out=made[start : start + pool])
    return made.view(t.shape)


def repeated(values: Tensor, shape: torch.Size) -> Tensor:
    """The values, over and over, in another shape."""
    made = torch.empty(shape.numel(), dtype=values.dtype, device=values.device)
    for start in range(0, made.numel(), max(values.numel(), 1)):
        part = made[start : start + values.numel()]
        part.copy_(values[: part.numel()])
    return made.view(shape)


def generator(t: Tensor, seed: int) -> torch.Generator:
    """Draws where the tensor lives; the same numbers on every run there."""
    return torch.Generator(device=t.device).manual_seed(seed % 2**63)
