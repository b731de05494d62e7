"""How a worker ended -> what the machine lacked, if that explains it: memory, or a free core.

Neither is a fault of the candidate. What it could not finish is tried once more, alone. Then there
is no verdict, and the reason says what was missing, and who has it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fusewright.judge.isolation.processes import End

NO_CORE = 0.3  # of the time in which a process could have run, and waited for a core
RUNNABLE = 0.5  # of the time that it was given: one that slept instead was not starved
HOLDERS = 3
_COUNTERS = ("/proc/vmstat", "/sys/fs/cgroup/memory.events")


def kills() -> int:
    """How many processes the kernel has killed for memory so far, as far as can be seen."""
    lines = (line.split() for path in _COUNTERS for line in _lines(Path(path)))
    return sum(int(words[1]) for words in lines if words and words[0] == "oom_kill")


def of_memory(end: End, killed_before: int) -> str:
    """Why a worker that is gone was killed for memory; empty if it was not."""
    if end.reason or end.exit != "SIGKILL" or kills() <= killed_before:
        return ""
    return f"the kernel killed it for memory, of which it had {_size(end.peak_bytes)}"


def of_time(end: End, within_s: float, enough_s: float) -> str:
    """Why a worker that was late could not help it; empty if it could.

    enough_s: with so much processor time nobody is late.
    """
    could_run = end.ran_s + end.waited_s
    slept = could_run < RUNNABLE * within_s
    if slept or end.waited_s < NO_CORE * could_run or end.ran_s >= enough_s:
        return ""
    return (
        f"no answer in {within_s:.0f} s, of which it ran {end.ran_s:.1f} s and waited "
        f"{end.waited_s:.1f} s for a free core"
    )


def memory_now() -> str:
    """What is free, and who has the rest."""
    free = next((line.split()[1] for line in _lines(Path("/proc/meminfo")) if "Avail" in line), "0")
    most = sorted(_holders(), reverse=True)[:HOLDERS]
    who = ", ".join(f"{name} {_size(size)}" for size, name in most)
    return f"{_size(int(free) << 10)} are free now; most is held by {who}"


def _holders() -> Iterator[tuple[int, str]]:
    """Bytes that are a process's own, and its name."""
    for status in Path("/proc").glob("[0-9]*/status"):
        fields = dict(line.split(":", 1) for line in _lines(status) if ":" in line)
        if "RssAnon" in fields:
            yield int(fields["RssAnon"].split()[0]) << 10, fields["Name"].strip()


def _size(size: int) -> str:
    return f"{size / 2**30:.1f} GB" if size >= 1 << 30 else f"{size >> 20} MB"


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(errors="replace").splitlines()
    except OSError:
        return []
