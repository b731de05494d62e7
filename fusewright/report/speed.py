"""Timing -> what a reader wants of it: each side's time, and how much faster the file is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fusewright.report.run_report import plain

CANDIDATE, EAGER, COMPILED = "candidate", "eager", "torch.compile"
FASTER, SLOWER = "faster", "slower"


@dataclass(frozen=True)
class SpeedRatio:
    """How much faster the candidate is than a baseline: above 1 is faster. low, high: of the 95 %
    interval.  claim: what may be said of it."""

    median: float
    low: float
    high: float
    claim: str


@dataclass(frozen=True)
class SideSpeed:
    """One side. seconds: of a call, the median.  ratio: None of the candidate itself.  roofline:
    the time in which what is fused could be moved and computed at best, over this side's time; None
    where that is not known."""

    name: str
    seconds: float
    ratio: SpeedRatio | None = None
    roofline: float | None = None


@dataclass(frozen=True)
class Speed:
    """What was timed, the candidate first. missing: baselines with which nothing is compared, and
    why."""

    sides: tuple[SideSpeed, ...]
    missing: Mapping[str, str]

    @property
    def main(self) -> SideSpeed | None:
        """The baseline that a headline names: eager, or the first that there is."""
        compared = [side for side in self.sides if side.ratio is not None]
        return next((s for s in compared if s.name == EAGER), compared[0] if compared else None)


def speed_of(timing: object, fused_s: float = 0.0) -> Speed | None:
    """Of the `timing` of a verdict or of `bench`; None where nothing was timed.

    fused_s: seconds that the target's bandwidth and rates predict for the candidate; 0: not known.
    """
    given = plain(timing)
    if not isinstance(given, dict) or not given.get("sides"):
        return None
    ratios = {name: ratio_of(ratio) for name, ratio in given.get("ratios", {}).items()}
    times = {name: float(side["p50_s"]) for name, side in given["sides"].items()}
    # Beyond the roofline nothing runs: it is another machine's, or all lies in a cache.
    known = 0.0 < fused_s <= times.get(CANDIDATE, 0.0)
    shown = [name for name in (CANDIDATE, *ratios) if name in times]
    sides = (SideSpeed(n, times[n], ratios.get(n), fused_s / times[n] if known else None)
             for n in shown)  # fmt: skip
    return Speed(tuple(sides), given.get("missing") or {})


def ratio_of(ratio: Mapping[str, Any]) -> SpeedRatio:
    low, median, high = (float(ratio[key]) for key in ("low", "median", "high"))
    return SpeedRatio(median, low, high, str(ratio.get("claim", "")))


def predicted_s(kernels: Iterable[Mapping[str, Any]]) -> float:
    """Seconds of all kernels of a report together."""
    return sum(float(k["predicted_s"]) for k in kernels)
