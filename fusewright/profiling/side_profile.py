"""What a profile found: of each side where the time of its call goes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fusewright.judge.timing.sides import CANDIDATE
from fusewright.profiling.rows import ProfileRow


@dataclass(frozen=True)
class SideProfile:
    """Where the time of one side's call goes. Times are medians over calls, in microseconds.

    call_us: by the clock, without the profiler.  profiled_us: the same call under it, until all was
    over.  busy_us: in which something of a row ran.  between_us: the rest of `profiled_us`, which
    is Python's and the profiler's own.  unaccounted_us: what the clock has seen beyond `busy_us`;
    below 0 where the rows took longer under the profiler.  calls: profiled.  note: what a reader
    should know.
    """

    name: str
    call_us: float
    profiled_us: float
    busy_us: float
    between_us: float
    unaccounted_us: float
    calls: int
    rows: tuple[ProfileRow, ...]
    note: str = ""


@dataclass(frozen=True)
class Profile:
    """sides: the candidate first.  missing: baselines that do not run, and why."""

    device: str
    sides: tuple[SideProfile, ...]
    missing: Mapping[str, str]

    @property
    def step_times(self) -> Mapping[str, float]:
        """The microseconds that one run of each step of the emitted file took, by its name; empty
        where there is no such file."""
        rows = (row for side in self.sides if side.name == CANDIDATE for row in side.rows)
        return {row.name: row.us / row.count for row in rows if row.is_step}
