"""What the reference says to one set of arguments, worked out as far as somebody asks.

Eager's answer is there at once; what float64 says, its sensitivity, eager's usual error and the
like are functions that the lab gives, called when they are needed and no more than once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from torch import Tensor

from fusewright.judge.evidence import contract
from fusewright.judge.evidence.position_outputs import Places

USUAL_SHARE = 16  # of the rows, whose errors stand for all
State = Mapping[str, Tensor]
Kappas = Callable[[int], list[Tensor]]  # the sensitivity of each output, from so many pairs


@dataclass(frozen=True)
class Expected:
    """What the reference says to one set of arguments; the costly part only if it is asked for."""

    spec: str
    eager: list[Tensor]
    aliases: list[int]
    overlapping: list[bool]  # which outputs repeat memory, as expanded ones do
    blocks: list[Tensor]  # the arguments' memory after eager ran
    state: State  # eager's, after the call
    differentiable: Callable[[], tuple[bool, ...]]  # which outputs know how to be differentiated
    work_out: Callable[[], tuple[list[Tensor], Kappas]]
    noise: Callable[[], list[Tensor]]  # eager's usual error
    # For outputs that are positions: of what, for eager and in float64.
    positions: Places
    # Eager's outputs if extremes of zeros of both signs had the other one; None without such.
    zeros: Callable[[], Sequence[Tensor] | None]
    # In float64 on a CPU, where eager runs on a GPU.
    elsewhere: Callable[[], Sequence[Tensor] | None]

    # What is expected for these rows of the arguments alone, or for some that nobody knows; None
    # where they depend on the others.
    some_rows: Callable[[Tensor | None], Part | None] = lambda _: None
    like: Expected | None = None  # another draw, whose sensitivities and errors are usual
    is_part: bool = False  # of a draw: these are some rows, which stand for all
    taken: dict[str, float] = field(default_factory=dict)  # seconds, by what they were spent on

    @cached_property
    def _both(self) -> tuple[list[Tensor], Kappas]:
        begin = time.monotonic()
        found = self.work_out()
        self.taken["truth"] = time.monotonic() - begin
        return found

    @property
    def truth(self) -> list[Tensor]:
        """What float64 says."""
        return self._both[0]

    def kappa(self, pairs: int = contract.PAIRS) -> list[Tensor]:
        """How much one rounding of all data moves it, from so many pairs of draws."""
        name = f"{pairs} pairs"
        if name not in self._kappas:
            begin = time.monotonic()
            self._kappas[name] = self._both[1](pairs)
            self.taken[name] = time.monotonic() - begin
        return self._kappas[name]

    @cached_property
    def _kappas(self) -> dict[str, list[Tensor]]:
        return {}

    @cached_property
    def sizes(self) -> list[float]:
        """The usual sensitivity of each output, for other draws of the same inputs."""
        return [float(k.square().mean().sqrt()) if k.numel() else 0.0 for k in self.kappa()]

    @cached_property
    def usual(self) -> list[Mapping[str, float]]:
        """Eager's errors in each output, of its first rows, in units of these."""
        some: Callable[[Tensor], Tensor] = (lambda t: t) if self.is_part else _first
        three = zip(self.eager, self.truth, self.sizes, strict=True)
        return [contract.usual_errors(some(e), some(y), size) for e, y, size in three]

    @cached_property
    def part(self) -> Part | None:
        """Rows that float64 is asked about instead of all of them, where that can be."""
        return self.some_rows(None)

    @property
    def seconds(self) -> float:
        """How long all of this takes, if as many draws are needed as there can be."""
        truth = self.taken.get("truth", 0.0)
        drawn = max((s for name, s in self.taken.items() if name != "truth"), default=0.0)
        return truth + drawn


@dataclass(frozen=True)
class Part:
    """Rows of a call, and what is expected for them."""

    rows: slice | Tensor
    expected: Expected


def _first(t: Tensor) -> Tensor:
    """A sixteenth of the rows, or all where there are few."""
    return t[: t.shape[0] // USUAL_SHARE] if t.ndim and t.shape[0] >= USUAL_SHARE else t
