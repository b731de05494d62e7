"""Stands in for `fusewright optimize` in a suite: does what the problem file's first line names.

It keeps a journal beside the suite's output: `start NAME`, `asked NAME`, `turn NAME`,
`back NAME`, `end NAME`, each with a time; and `on-GPU NAME`, if it was given one.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from fusewright.common.timing_lock import ASK, Need, hold_timing_lock, settle

REPORT: dict[str, Any] = {
    "verdict": "verified",
    "reason": "every check that was asked for passed",
    "kernels": [
        {"name": "linear", "kind": "library", "operators": ["linear"], "predicted_s": 0.0002},
        {"name": "add_relu", "kind": "fused", "operators": ["add", "relu"], "predicted_s": 0.0003},
    ],
    "accuracy": {"candidate": {"rel_l2": 1e-7}, "eager": {"rel_l2": 2e-7}},
    "timing": None,
    "degenerate": False,
    "checks": [{"check": "values", "outcome": "pass", "evidence": "5 draws", "cases": 5}],
    "forwards": [],
    "parts": None,
    "decisions": None,
    "environment": {},
    "path": None,
    "target": None,
}
RATIO = {"median": 2.0, "low": 1.5, "high": 2.5, "claim": "faster"}
TIMING = {
    "sides": {"candidate": {"p50_s": 0.001}, "eager": {"p50_s": 0.002}},
    "ratios": {"eager": RATIO},
}


def stand_in(arguments: list[str]) -> None:
    sys.exit(main(arguments))


def main(arguments: list[str]) -> int:
    sys.argv[1:] = arguments
    words = dict(itertools.pairwise(arguments))
    problem = Path(arguments[1])
    behaviour = problem.read_text().splitlines()[0].removeprefix("# ")
    output = Path(words["--output"])
    journal = next(p for p in output.parents if p.name == "out").parent / "journal"

    def note(event: str) -> None:
        with journal.open("a") as file:
            file.write(f"{event} {problem.stem} {time.monotonic()}\n")

    note("start")
    if on := os.environ.get("CUDA_VISIBLE_DEVICES"):
        note(f"on-{on}")
    if behaviour == "hungry":
        settle(int(words["--turn"]), Need(10**15, 10**15))
        note("asked")
        time.sleep(0.3)
    code = BEHAVIOURS[behaviour](output)
    report = REPORT
    if behaviour == "refuted":
        report = REPORT | {"verdict": "refuted", "reason": "failed: values"}
    if behaviour == "crowded" and code == 0:
        behaviour = "good"
    if behaviour in ("unusable", "memory", "crowded"):
        short = behaviour != "unusable"
        reason = "DefaultCPUAllocator: can't allocate memory" if short else "bad"
        report = {**REPORT, "verdict": "not-verified", "reason": reason, "kernels": []}
        report |= {"accuracy": {}}
    turns = int("--no-timing" not in arguments) + ("--tune" in words)
    for _ in range(turns if behaviour == "good" else 0):
        note("asked")
        with hold_timing_lock(int(words["--turn"])):
            note("turn")
            time.sleep(0.3)
            note("back")
        report = REPORT | {"timing": TIMING}
    if behaviour not in ("silent", "full"):
        Path(words["--report"]).write_text(json.dumps(report))
    note("end")
    return code


def crash(_: Path) -> int:
    os.kill(os.getpid(), signal.SIGSEGV)
    return 0


def desert(_: Path) -> int:
    """Dies while it waits for its turn."""
    with socket.socket(fileno=os.dup(int(sys.argv[-1]))) as line:
        line.sendall(ASK)
        os.kill(os.getpid(), signal.SIGSEGV)
    return 0


def killed(_: Path) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return 0


def hang(output: Path) -> int:
    """A child in the same group, which nobody would reap; and deaf to a polite request."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    child = subprocess.Popen(["sleep", "600"])
    output.with_suffix(".child").write_text(str(child.pid))
    print("about to hang", flush=True)  # noqa: T201
    time.sleep(600)
    return 0


def full(_: Path) -> int:
    print("cannot write the file: No space left on device", file=sys.stderr)  # noqa: T201
    return 2


def slow(_: Path) -> int:
    time.sleep(0.5)
    return 0


def crowded(output: Path) -> int:
    """Has too little memory the first time."""
    mark = output.with_suffix(".crowded")
    first = not mark.exists()
    mark.touch()
    time.sleep(0.2)
    return 2 if first else 0


def held(output: Path) -> int:
    """p0 and p1 end at once, the others when they are let go."""
    while output.stem not in ("p0", "p1") and not (output.parent.parent / "go").exists():
        time.sleep(0.05)
    return 0


BEHAVIOURS = {
    "good": lambda _: 0,
    "hungry": lambda _: 0,
    "refuted": lambda _: 1,
    "unusable": lambda _: 2,
    "memory": lambda _: 2,
    "silent": lambda _: 0,
    "crash": crash,
    "killed": killed,
    "desert": desert,
    "hang": hang,
    "full": full,
    "held": held,
    "crowded": crowded,
    "slow": slow,
}
