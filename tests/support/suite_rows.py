"""Rows of a suite of each kind, in no order."""

from __future__ import annotations

from fusewright.report.speed import EAGER, SpeedRatio
from fusewright.suite.row import SuiteRow


def timed(name: str, ratio: float, claim: str) -> SuiteRow:
    """One that is verified, with its interval a tenth to each side."""
    over = {EAGER: SpeedRatio(ratio, ratio / 1.1, ratio * 1.1, claim)}
    times = {"candidate": 0.001, EAGER: 0.001 * ratio}
    return SuiteRow(name, "verified", "all passed", times=times, ratios=over, error=1e-7 * ratio)


ROWS = (
    timed("fast", 2.0, "faster"),
    SuiteRow("<b>", "not-verified", "a < b", end="crashed"),
    timed("slow", 0.5, "slower"),
    SuiteRow("wrong", "refuted", "failed: values"),
    timed("nets/fastest", 12.0, "faster"),
    timed("same", 1.0, "no difference shown"),
)
