"""Is the progress line true? What it says at each moment of a judging against how that ends.

    python bench/progress.py [--target cpu|cuda] [NAMES]

The problems are those of bench/verdicts.py, each optimized without tuning and then judged without
timing. Printed for each: how many moments there were, and in how many the seconds left were within
30 %, or one second, of what was left; and what was said at a tenth, a half and nine tenths.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from verdicts import CPU, GPU, ROOT

from fusewright.judge.judging import judge

NEAR, NEAR_S = 0.3, 1.0


class Told:
    """Takes what a progress line would show, with its time."""

    def __init__(self, begin: float) -> None:
        self._begin = begin
        self.moments: list[tuple[float, float]] = []

    def __call__(self, _: str) -> None:
        """A phase begins, which the bench does not count."""

    def left(self, _: float, seconds: float) -> None:
        self.moments.append((time.monotonic() - self._begin, seconds))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    here = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--target", choices=("cpu", "cuda"), default=here)
    parser.add_argument("names", nargs="*", help="problems; all of them if none is named")
    given = parser.parse_args()
    table = GPU if given.target == "cuda" else CPU
    near = every = 0
    for name in given.names or table:
        moments, end = _moments(name, given.target)
        right = [abs(left - (end - at)) <= max(NEAR * (end - at), NEAR_S) for at, left in moments]
        near, every = near + sum(right), every + len(right)
        print(f"{name:20} {end:6.1f} s  {sum(right)} of {len(right)} right  {_shown(moments, end)}")
    print(f"{near} of {every} moments within {NEAR:.0%} or {NEAR_S:.0f} s")
    return 0


def _moments(name: str, target: str) -> tuple[list[tuple[float, float]], float]:
    """(seconds since the beginning, seconds left as said), and when it ended."""
    file, sizes = (GPU if target == "cuda" else CPU)[name]
    with tempfile.TemporaryDirectory(prefix="fusewright-progress-") as folder:
        written = Path(folder, f"{name}.py")
        order = ["optimize", str(ROOT / file), "-o", str(written), "--target", target]
        order += ["--no-timing", "--tune", "off", *(f"--set={k}={v}" for k, v in sizes.items())]
        subprocess.run([sys.executable, "-m", "fusewright", *order], capture_output=True, cwd=ROOT)
        begin = time.monotonic()

        sized = {key: str(value) for key, value in sizes.items()}
        told = Told(begin)
        judge(ROOT / file, written, device=target, timing=False, overrides=sized, progress=told)
        return told.moments, time.monotonic() - begin


def _shown(moments: list[tuple[float, float]], end: float) -> str:
    picked = []
    for share in (0.1, 0.5, 0.9):
        at, left = moments[int(share * (len(moments) - 1))]
        picked.append(f"at {at:.1f} s: {left:.1f} left, and there were {end - at:.1f}")
    return "; ".join(picked)


if __name__ == "__main__":
    sys.exit(main())
