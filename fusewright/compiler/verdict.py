"""A problem and the file that `optimize` writes for it -> what the judge is asked of them.

The judge's processes start before PyTorch is imported here, so nothing in this file imports it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from fusewright.common.budget import Budget
from fusewright.judge.findings import Verdict
from fusewright.judge.request import Request

TIMING_SECONDS = 5.0  # of timed turns; `bench` and `judge` take longer and give narrower intervals


def output_path(problem: Path, out: Path | None) -> Path:
    """The file to write: as named, or in the current folder and named after the problem."""
    return out or Path(f"{problem.stem}_fused.py")


@dataclass(frozen=True)
class Terms:
    """On which a file is judged. grad: whether its gradients are asked for, too.  seed: as `judge`
    takes it.  budget: of the command."""

    timing: bool = True
    grad: bool = False
    seed: str = ""
    budget: Budget | None = None


def request_for(
    problem: Path, out: Path | None, device: str, overrides: Mapping[str, str], mode: str,
    terms: Terms,
) -> Request:  # fmt: skip
    """The file as a candidate for its problem. mode: as on the command line."""
    asked = Request(
        problem.absolute(), output_path(problem, out).absolute(), device,
        overrides=dict(overrides), timing=terms.timing, budget_s=TIMING_SECONDS,
        mode="" if mode == "both" else mode, grad=terms.grad, seed=terms.seed,
    )  # fmt: skip
    if terms.budget is None:
        return asked
    deadline = terms.budget.checks_end if terms.timing else terms.budget.end
    return replace(asked, budget_s=terms.budget.timing_s, deadline=deadline)


def is_judged_later(verdict: Verdict, mode: str) -> bool:
    """Whether this other mode of a file is still to be judged: eager is not random in it, and most
    of the questions were asked in the first mode."""
    judged = verdict.environment.get("modes")
    return verdict.verdict == "verified" and isinstance(judged, list) and mode in judged[1:]


def with_other_mode(verdict: Verdict, mode: str, other: Verdict) -> Verdict:
    """The verdict on a file that is for both modes.

    verdict: verified, in the mode of the problem.  other: in this one; what is not verified there
    is the verdict on the file.
    """
    if other.verdict != "verified":
        return replace(other, reason=f"in {mode} mode: {other.reason}", timing=verdict.timing)
    return replace(verdict, reason=f"{verdict.reason}, and so it did in {mode} mode")
