"""What a judging has cost: seconds by phase, runs of the reference, bytes, memory by process.

Nothing is decided by it. It stands in every report, so that what got slower, or takes more memory
than it should, is seen where it happens.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

RUNS = ("eager runs", "float64 runs")  # of the reference, as the trusted worker counts them
WAITED = "waiting for the candidate"  # a part of every phase, not one of them


class Costs:
    """Of one judging, as its parent sees them.

    Seconds are wall-clock time, each moment a part of one phase. `sent` and `returned` are bytes of
    arguments and of results that went through shared memory, to and from all workers together.
    `peak_bytes` is the most that a process of that name has had in memory, as its warden saw it,
    with all that it started; of the trusted worker, what it says itself.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._seconds: dict[str, float] = {}
        self._phase, self._since = "", now()
        self._peaks: dict[str, int] = {}
        self._runs: Counter[str] = Counter()
        self.sent = self.returned = self.calls = 0

    def enter(self, phase: str) -> None:
        """From now on all seconds belong to this phase; "": to none."""
        now = self._now()
        if self._phase:
            self.spent(self._phase, now - self._since)
        self._phase, self._since = phase, now

    def spent(self, phase: str, seconds: float) -> None:
        """So many more seconds of a phase."""
        self._seconds[phase] = self._seconds.get(phase, 0.0) + seconds

    def posted(self, message: Mapping[str, Any]) -> None:
        """A command for a worker, with what it points to."""
        self.calls += message.get("do") == "call"
        for key in ("arguments", "cotangents"):
            held = message.get(key) or {"blocks": ()}
            self.sent += sum(int(block["nbytes"]) for block in held["blocks"])

    def took(self, sizes: Sequence[int]) -> None:
        """The results of one answer."""
        self.returned += sum(sizes)

    def ended(self, name: str, peak_bytes: int) -> None:
        """A worker that has ended, and the most memory that it had."""
        self._peaks[name] = max(peak_bytes, self._peaks.get(name, 0))

    def ran(self, runs: Mapping[str, int]) -> None:
        """Runs of the reference, by kind."""
        self._runs.update(runs)

    def written(self, waited_s: float) -> dict[str, object]:
        """For a report. waited_s: of all phases together, for answers of the candidate."""
        self.enter("")
        seconds = {name: round(s, 2) for name, s in self._seconds.items()}
        return {
            "seconds": {**seconds, WAITED: round(waited_s, 2)},
            "calls": self.calls,
            **{name: self._runs[name] for name in RUNS},
            "bytes sent": self.sent,
            "bytes returned": self.returned,
            "peak bytes": dict(sorted(self._peaks.items(), key=lambda entry: -entry[1])),
        }
