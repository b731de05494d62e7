"""The words of a command -> its report, within limits of time, memory and disk.

The command is a process of its own in a folder of its own. Limits are of it and of all that it
starts, together; what goes beyond one is killed whole, and the folder is removed.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

LOOK_S = 0.2  # between two looks at what a command takes
LEAVE_S = 5.0  # for tidying up, after it was asked to stop
TAIL = 2000  # characters of what a command said, where it left no report
GB = 1e9


@dataclass(frozen=True)
class Limits:
    """seconds: of one command.  memory_bytes, disk_bytes: of all its processes, of its folder."""

    seconds: float = 600.0
    memory_bytes: float = 32 * GB
    disk_bytes: float = 8 * GB


class LimitReached(Exception):
    """What a command took too much of."""


class CommandFailed(Exception):
    """A command that left no report, with its last words."""


def run_command(
    words: Sequence[str],
    files: Mapping[str, str],
    limits: Limits,
    stop: threading.Event,
    written: str,
) -> dict[str, Any]:
    """What `fusewright WORDS --report` reports.

    files: texts by name, which lie in the command's folder.  stop: once set, the command is killed.
    written: a file that it may write there; its text is then the report's `source`.
    Raises LimitReached, and CommandFailed for bad usage and for a command that was stopped.
    """
    with tempfile.TemporaryDirectory(prefix="fusewright-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        for file, text in files.items():
            (folder / file).write_text(text, encoding="utf-8")
        report, log = folder / "report.json", folder / "log.txt"
        command = [sys.executable, "-m", "fusewright", *words, "--report", str(report)]
        with log.open("wb") as said:
            process = subprocess.Popen(
                command, cwd=folder, stdin=subprocess.DEVNULL, stdout=said, stderr=said,
                start_new_session=True, env={**os.environ, "TMPDIR": name},
            )  # fmt: skip
            try:
                _watch(process, folder, limits, stop)
            finally:
                _kill(process)
        if process.returncode in (0, 1, 3) and report.exists():
            found: dict[str, Any] = json.loads(report.read_bytes())
            if (folder / written).exists():
                found["source"] = (folder / written).read_text(encoding="utf-8")
            return found
        text = log.read_text(encoding="utf-8", errors="replace").strip()
        raise CommandFailed(text[-TAIL:] or f"it ended with exit code {process.returncode}")


def _watch(
    process: subprocess.Popen[bytes], folder: Path, limits: Limits, stop: threading.Event
) -> None:
    """Until it ends; raises LimitReached where it takes too much of something."""
    deadline = time.monotonic() + limits.seconds
    while process.poll() is None:
        if stop.wait(LOOK_S):
            raise CommandFailed("it was stopped")
        if time.monotonic() > deadline:
            raise LimitReached(f"the command took longer than its {limits.seconds:g} s")
        for taken, limit, what in (
            (_memory(process.pid), limits.memory_bytes, "of memory"),
            (_disk(folder), limits.disk_bytes, "of disk"),
        ):
            if taken > limit:
                raise LimitReached(
                    f"the command took {taken / GB:.3g} GB {what}, its limit is {limit / GB:.3g} GB"
                )


def _family(pid: int) -> list[psutil.Process]:
    """A process and all that it has started, as far as they are there."""
    try:
        first = psutil.Process(pid)
        return [first, *first.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _memory(pid: int) -> int:
    """Bytes that they hold: memory that several of them share counts once."""
    taken = 0
    for one in _family(pid):
        with contextlib.suppress(psutil.Error):
            held = one.memory_info()
            taken += held.rss - getattr(held, "shared", 0)
    return taken


def _disk(folder: Path) -> int:
    """Bytes of the files below a folder, as they come and go."""
    taken = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                taken += os.lstat(os.path.join(place, name)).st_blocks * 512
    return taken


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Ask it to leave, so that it tidies up; then end all that is left of it."""
    family = _family(process.pid)
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(LEAVE_S)
    for one in family:
        with contextlib.suppress(psutil.Error):
            one.kill()
    process.wait()
