"""Problem files -> seconds from the start of `optimize` to its planning, and the memory until then.

    prlimit --data=6000000000 python bench/planning_start.py [PROBLEM ...]

Without files, of two problems of 8 GB and a small one. Each file is a process of its own, whose
seconds are counted from its start by the system, so that Python and PyTorch are in them. `explain`
is timed as a whole: it plans, and runs nothing.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROBLEM = """
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return {forward}


def get_inputs():
    return [{made}]
"""
ROWS = "torch.softmax(x * 2.0, dim=1).sum(dim=1)"
OWN = {
    "sum": ("(x * 2.0).sum()", "torch.randn(2_000_000_000)"),
    "rows": (ROWS, "torch.rand(262144, 8192)"),
    "small": (ROWS, "torch.rand(64, 256)"),
}
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
    from fusewright.compiler.pipeline import optimize_file

    def step(name: str) -> None:
        if name.startswith(PLANNING):
            raise Reached

    try:
        optimize_file(path, out=folder / "out.py", target="cpu", progress=step)
    except Reached:
        report(path, "planning begins")


def explain(path: Path) -> None:
    from fusewright.compiler.pipeline import explain_file

    explain_file(path, target="cpu")
    report(path, "explained")


def own(folder: Path) -> list[str]:
    """The files of our own problems."""
    for name, (forward, made) in OWN.items():
        text = PROBLEM.format(forward=forward, made=made)
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    return [str(folder / f"{name}.py") for name in OWN]


def main(arguments: list[str]) -> None:
    with tempfile.TemporaryDirectory() as name:
        if arguments[:1] == ["--plan"]:
            plan(Path(arguments[1]), Path(name))
        elif arguments[:1] == ["--explain"]:
            explain(Path(arguments[1]))
        else:
            for path in arguments or own(Path(name)):
                for what in ("--plan", "--explain"):
                    subprocess.run([sys.executable, __file__, what, path], check=True)


if __name__ == "__main__":
    main(sys.argv[1:])
