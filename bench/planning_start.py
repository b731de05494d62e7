"""Problem files -> seconds from the start of `optimize` to its planning, and the memory until then.

    prlimit --data=6000000000 python bench/planning_start.py PROBLEM [PROBLEM ...]

Each file is a process of its own, whose seconds are counted from its start by the system, so that
Python and PyTorch are in them. `explain` is timed as a whole: it plans, and runs nothing.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PLANNING = "planning"  # how the step begins


class Reached(BaseException):
    """Planning begins."""


def seconds_of_this_process() -> float:
    """Since it was started, to a hundredth."""
    fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    ticks = float(fields[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / 100


def report(path: Path, doing: str) -> None:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(f"{path.name}: {doing} after {seconds_of_this_process():.2f} s, {peak} MB at most")


def plan(path: Path, folder: Path) -> None:
    from fusewright.pipeline import optimize_file

    def step(name: str) -> None:
        if name.startswith(PLANNING):
            raise Reached

    try:
        optimize_file(path, out=folder / "out.py", target="cpu", progress=step)
    except Reached:
        report(path, "planning begins")


def explain(path: Path) -> None:
    from fusewright.pipeline import explain_file

    explain_file(path, target="cpu")
    report(path, "explained")


def main(arguments: list[str]) -> None:
    if arguments[0] == "--plan":
        with tempfile.TemporaryDirectory() as folder:
            plan(Path(arguments[1]), Path(folder))
    elif arguments[0] == "--explain":
        explain(Path(arguments[1]))
    else:
        for path in arguments:
            for what in ("--plan", "--explain"):
                subprocess.run([sys.executable, __file__, what, path], check=True)


if __name__ == "__main__":
    main(sys.argv[1:])
