"""A candidate under compute-sanitizer -> errors of memory, races, uninitialised reads, barriers.

Each tool gets a fresh process, without PyTorch's caching allocator, which would hide an overrun
into a neighbouring block, and every argument an allocation of its own. Namespaces and seccomp are
off here, because the tool talks to its target; so the phase comes last, and only for a candidate
that passed everything else.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fusewright.judge.isolation import sandbox
from fusewright.judge.request import Limits, Phase
from fusewright.judge.session import Part
from fusewright.judge.workers import Stopped

if TYPE_CHECKING:
    from fusewright.judge.isolation.processes import Worker
    from fusewright.judge.session import Session

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
_OPTIONS = ("--target-processes", "all", "--launch-timeout", "120", "--print-limit", "50")
_EXTRA = {
    "memcheck": ("--padding", "256", "--track-stream-ordered-races", "all"),
    "racecheck": ("--racecheck-report", "all"),
}
_PHASE = Phase("sanitizer", "sanitizer", ("setup", "exact"))
# Kernels are loaded, and so prepared by the tool, when they are first launched.
_ENVIRONMENT = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "CUDA_MODULE_LOADING": "LAZY"}
_SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: (\d+) (?:errors?|hazards?)")
_NO_CUDA = "before first instrumented API call"
_SLOWDOWN = 60  # the tools make kernels up to a hundred times slower


def check(session: Session, slot: int) -> None:
    """One row for all four tools; a tool without a summary is no evidence.

    The first that finds an error has the last word: what writes where it should not may write into
    the tables of the next tool, which then never ends.
    """
    program = shutil.which("compute-sanitizer", path=session.site.tool_path())
    if program is None:
        session.ledger.add("sanitizer", "skip", "compute-sanitizer is not installed")
        return
    clean, refuted = [], False
    # All start at once, which takes the longest; they share a slot, and use it one by one.
    started = [_start(session, slot, program, tool) for tool in TOOLS]
    for tool, (worker, folder) in zip(TOOLS, started, strict=True):
        if refuted:
            session.send_off(worker)
            continue
        session.progress(f"sanitizer: {tool}")
        told = _run(session, slot, worker, folder)
        if told is None:
            session.ledger.add("sanitizer", "skip", f"{tool} wrote no summary")
            session.ledger.gaps.append(f"{tool} of compute-sanitizer gave no result here")
        elif told:
            refuted = True
            session.ledger.add("sanitizer", "fail", f"{tool}: {told}")
        else:
            clean.append(tool)
    session.part()
    if clean:
        session.ledger.add("sanitizer", "pass", ", ".join(clean))


def _start(session: Session, slot: int, program: str, tool: str) -> tuple[Worker, Path]:
    """The worker under its tool, and the folder of the tool's logs."""
    folder = Path(tempfile.mkdtemp(prefix=tool, dir=session.site.folder))
    log = ("--log-file", str(folder / "%p.log"))
    launcher = (program, "--tool", tool, *_OPTIONS, *_EXTRA.get(tool, ()), *log)
    worker = session.start_candidate(
        tool, slot, plan=sandbox.Plan(0, cuda=True), launcher=launcher, environment=_ENVIRONMENT
    )
    return worker, folder


def _run(session: Session, slot: int, worker: Worker, folder: Path) -> str | None:
    """What the tool found: empty for nothing, None if it did not finish its work."""
    limits = Limits(600, 600, 1200, session.request.limits.call_s * _SLOWDOWN, 120)
    with contextlib.suppress(Stopped):  # the ledger knows; the tool's log says where
        session.run_phases([Part(_PHASE, worker, slot, shares=False)], limits)
    session.part()
    return _read(sorted(folder.glob("*.log")))


def _read(logs: Sequence[Path]) -> str | None:
    finished = False
    for log in logs:
        text = log.read_text(errors="replace")
        counts = [int(count) for count in _SUMMARY.findall(text)]
        if not counts or _NO_CUDA in text:
            continue  # the warden, a compiler: no kernel was watched
        finished = True
        if sum(counts):
            lines = [line.strip("= ").strip() for line in text.splitlines()]
            told = [line for line in lines if line][1:4]
            return f"{sum(counts)} errors: {' / '.join(told)[:400]}"
    return "" if finished else None
