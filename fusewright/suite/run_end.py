"""The report of one run, or its exit code and last words -> how it ended.

`end` is "" where it came to its end, else one of: unusable, crashed, time limit, out of memory,
disk full, bug, lost.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# What a run says when memory was short: PyTorch on a CPU and on a GPU, Python, the judge.
SHORT_OF_MEMORY = ("MemoryError", "OutOfMemory", "out of memory", "can't allocate", "little memory")
# Words in the reason, then the exit code -> how it ended.
DISK_FULL, OUT_OF_MEMORY, LOST = "disk full", "out of memory", "lost"
PHRASES = dict.fromkeys(SHORT_OF_MEMORY, OUT_OF_MEMORY) | {"No space left": DISK_FULL}
ENDS = {2: "unusable", 70: "bug"}
SAYS_NOTHING = (DISK_FULL, LOST)  # of the problem: another time it may end otherwise


@dataclass(frozen=True)
class RunEnd:
    """report: what it left, if anything.  reason: why it ended so, in a sentence.  node, device:
    the name of the machine that it ran on, and the kind of its GPU, or else of its processor."""

    end: str
    reason: str
    seconds: float
    report: Mapping[str, Any] | None = None
    node: str = ""
    device: str = ""


def reported(report: Mapping[str, Any], code: int, seconds: float) -> RunEnd:
    """That of a run that left a report."""
    reason = str(report.get("reason", ""))
    return RunEnd(_end(code, reason), reason, seconds, report)


def ended(code: int, last_words: str, seconds: float) -> RunEnd:
    """That of a run that left no report; code: as subprocess gives it."""
    if code < 0:
        end, reason = "crashed", f"the run ended with {signal.Signals(-code).name}"
        if code == -signal.SIGKILL:
            end, reason = OUT_OF_MEMORY, f"{reason}: most often there was too little memory"
    else:
        end, reason = _end(code, last_words) or "crashed", f"the run ended with exit code {code}"
    text = f"{reason}. {last_words}" if last_words else f"{reason}."
    return RunEnd(end, text, seconds)


def out_of_time(limit_s: float, last_words: str, seconds: float) -> RunEnd:
    """That of a run that was killed when its time was up."""
    reason = f"no result within {limit_s:g} s"
    reason += f"; its last words: {last_words}" if last_words else ""
    return RunEnd("time limit", reason, seconds)


def not_started(why: str, seconds: float) -> RunEnd:
    """That of a run for which no process could be started."""
    return RunEnd(_phrase(why) or "crashed", why, seconds)


def lost(why: str, seconds: float) -> RunEnd:
    """That of a run whose machine was lost, each time that it was begun."""
    return RunEnd(LOST, why, seconds)


def _end(code: int, reason: str) -> str:
    if code in (0, 1):
        return ""
    return _phrase(reason) or ENDS.get(code, "")


def _phrase(reason: str) -> str:
    return next((end for words, end in PHRASES.items() if words in reason), "")
