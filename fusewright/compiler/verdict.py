"""A problem and the file that `optimize` writes for it -> what the judge is asked of them.

The judge's processes start before PyTorch is imported here, so nothing in this file imports it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fusewright.judge.request import Request

STANDARD_OUTPUT = Path("-")  # in place of a file: no file, the text goes there
TIMING_SECONDS = 5.0  # of timed turns; `bench` and `judge` take longer and give narrower intervals


def output_path(problem: Path, out: Path | None) -> Path:
    """The file to write: as named, or in the current folder and named after the problem."""
    return out or Path(f"{problem.stem}_fused.py")


def request_for(
    problem: Path, out: Path | None, device: str, overrides: Mapping[str, str], *, timing: bool
) -> Request:
    """The written file as a candidate for its problem."""
    return Request(
        problem.absolute(), output_path(problem, out).absolute(), device,
        overrides=dict(overrides), timing=timing, budget_s=TIMING_SECONDS,
    )  # fmt: skip
