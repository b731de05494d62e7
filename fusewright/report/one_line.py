"""Outcome, Verdict or Timing -> the one line of `-q`: the verdict, the ratio, the file."""

from __future__ import annotations

from fusewright.judge.findings import Verdict
from fusewright.report.amounts import times_text
from fusewright.report.run_report import OptimizeResult, plain
from fusewright.report.speed import FASTER, SLOWER, SideSpeed, speed_of


def outcome_line(outcome: OptimizeResult) -> str:
    if outcome.verdict is None:
        return f"not-verified: {outcome.path}"
    return verdict_line(outcome.verdict, str(outcome.path))


def verdict_line(verdict: Verdict, candidate: str) -> str:
    """candidate: its file, as named; "" where that is not known."""
    speed = speed_of(verdict.timing) if verdict.verdict == "verified" else None
    ratio = compared(speed.main) if speed and speed.main else ""
    return ": ".join(part for part in (verdict.verdict, ratio, candidate) if part)


def timing_line(timing: object, candidate: str) -> str:
    speed = speed_of(timing)
    ratios = [compared(side) for side in speed.sides if side.ratio] if speed else []
    return ": ".join(part for part in (", ".join(ratios), candidate) if part)


def contest_line(contest: object) -> str:
    """The fastest of several candidates, which comes first."""
    given = plain(contest)
    timings = given.get("timings") if isinstance(given, dict) else None
    if not timings:
        return "no candidate was timed"
    name, timing = next(iter(timings.items()))
    return timing_line(timing, name)


def compared(side: SideSpeed) -> str:
    """`1.23x faster than eager`, or `no difference from eager shown (1.02x)`."""
    ratio = side.ratio
    if ratio is None:
        return ""
    if ratio.claim in (FASTER, SLOWER):
        return f"{times_text(ratio.median)}, {ratio.claim} than {side.name}"
    return f"{times_text(ratio.median)}, no difference from {side.name} shown"
