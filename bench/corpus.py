"""The whole corpus through the whole judge, several times in a row: escapes, false alarms, flakes.

    python bench/corpus.py [--runs 10] [--jobs 2] [--gpu] [--starved] [--output FILE] [NAME]...

CI tries each cheat only on the experiments that can set off its check; here nothing is left out.
Up to a dozen entries of one problem share a trusted worker and its self-test, and nothing else.
Beside others: python bench/neighbours.py.
Without an installed fusewright: PYTHONPATH=. python3 bench/corpus.py
"""

from __future__ import annotations

import argparse
import collections
import importlib.metadata
import json
import os
import platform
import resource
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from queue import SimpleQueue

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from fusewright.judge.counts import Counts
from tests.support.corpus import (
    WORKERS,
    Entry,
    Outcome,
    cheats,
    controls,
    groups,
    judged_in_turn,
    lacking,
    options_for,
)

FEW = 3  # rows of a call that need not be of full size


def main() -> int:
    options = _arguments()
    every = [*cheats(), *controls()]
    unknown = set(options.names) - {entry.name for entry in every}
    if unknown:
        sys.exit(f"no cheat and no control is called {', '.join(unknown)}")
    entries = [
        entry
        for entry in every
        if (not options.names or entry.name in options.names) and (options.gpu or not entry.on_gpu)
    ]
    left_out = {entry.name: why for entry in entries if (why := lacking(entry))}
    for name, why in left_out.items():
        print(f"left out: {name}: {why}")
    entries = [entry for entry in entries if entry.name not in left_out]
    surprises: list[dict[str, object]] = []
    short = 0
    begin = time.monotonic()
    for run in range(1, options.runs + 1):
        for entry, outcome in _judged(entries, options.jobs, _plan(options)):
            short += (starved := options.starved and _is_short(outcome))
            if not starved and (complaint := _complaint(entry, outcome, options.shortened)):
                first = outcome.reason.strip().splitlines()[-1]
                print(f"run {run}: {entry.name} {complaint}; {first}", flush=True)
                row = {"run": run, "entry": entry.name, "complaint": complaint}
                surprises.append(row | {"outcome": str(outcome).splitlines()})
        minutes, cpu = (time.monotonic() - begin) / 60, _cpu_seconds() / 60
        print(
            f"run {run}: {len(entries)} entries, {len(surprises)} surprises so far, "
            f"{minutes:.1f} min, {cpu:.1f} min of processor time"
            + (f", {short} not verified for want of memory" if options.starved else ""),
            flush=True,
        )
        if options.output:
            told = _summary(entries, left_out, surprises, run, minutes * 60)
            options.output.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    for name, times in collections.Counter(str(s["entry"]) for s in surprises).most_common():
        print(f"{times} of {options.runs} runs: {name}")
    return 1 if surprises else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=WORKERS, help="judgings at a time")
    parser.add_argument("--gpu", action="store_true", help="the entries that need a GPU, too")
    starved = "beside neighbours that hold the memory, not verified for want of it is no surprise"
    parser.add_argument("--starved", action="store_true", help=starved)
    shortened = "as if calls were costly: as few of full size as there may be, most with fewer rows"
    parser.add_argument("--shortened", action="store_true", help=shortened)
    parser.add_argument("--truth", default="rows", choices=("rows", "whole"), help="as of judge")
    parser.add_argument("--output", type=Path, help="a file for the summary, as JSON")
    parser.add_argument("names", nargs="*", help="entries; all of them if none is named")
    return parser.parse_args()


def _plan(options: argparse.Namespace) -> dict[str, object]:
    """What all orders have in common."""
    given: dict[str, object] = {"truth": options.truth}
    if options.shortened:
        given["counts"] = Counts("cpu", 60.0, 30.0, 1.0, 30.0, 60.0, few=FEW).written()
    return given


def _judged(
    entries: Sequence[Entry], jobs: int, plan: Mapping[str, object]
) -> Iterator[tuple[Entry, Outcome]]:
    """The longest groups first; those with a clock last, when fewer and fewer share the machine."""
    parts = sorted(groups(entries), key=lambda group: ("timing" in group[0].needs, -len(group)))
    with ThreadPoolExecutor(jobs, initializer=partial(_settle, _shares(jobs))) as pool:
        for part, outcomes in zip(parts, pool.map(partial(_group, plan), parts), strict=True):
            yield from zip(part, outcomes, strict=True)


def _shares(jobs: int) -> SimpleQueue[list[int]]:
    """Each job gets cores of its own: programs that share theirs wait for each other's threads.

    But never one alone, on which nobody can see that a candidate leaves its process on one core.
    """
    cores, shares = sorted(os.sched_getaffinity(0)), SimpleQueue[list[int]]()
    for job in range(jobs):
        own = cores[job::jobs]
        shares.put(own if len(own) > 1 else cores)
    return shares


def _settle(shares: SimpleQueue[list[int]]) -> None:
    os.sched_setaffinity(0, shares.get())  # of this thread, and so of what it starts


def _group(plan: Mapping[str, object], entries: Sequence[Entry]) -> list[Outcome]:
    orders = [
        {"problem": str(e.problem), "candidate": str(e.path), **options_for(e), **plan}
        for e in entries
    ]
    return list(judged_in_turn(orders))


def _is_short(outcome: Outcome) -> bool:
    """Whether there is no verdict, and the reason is the machine's memory."""
    return outcome.verdict == "not-verified" and "memory" in str(outcome)


def _complaint(entry: Entry, outcome: Outcome, shortened: bool) -> str:
    """What is not as it should be. With few calls of full size the word stays, but another check
    may see it first, and a shape that would be refused may not be asked."""
    if entry.check and outcome.verdict != "refuted":
        return f"escaped: {outcome.verdict}"
    if not entry.check and outcome.verdict != "verified":
        return f"is honest and was {outcome.verdict}"
    if shortened:
        return ""
    if entry.check and entry.check not in outcome.failing:
        return f"was not refuted by {entry.check}, but by {', '.join(outcome.failing)}"
    missing = sorted(set(entry.notes) - set(outcome.notes))
    return f"lacks the notes {', '.join(missing)}" if missing else ""


def _cpu_seconds() -> float:
    """Of all processes that have ended; those killed with a namespace are not in it."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _summary(
    entries: Sequence[Entry],
    left_out: Mapping[str, str],
    surprises: Sequence[Mapping[str, object]],
    runs: int,
    seconds: float,
) -> dict[str, object]:
    return {
        "runs": runs,
        "entries": len(entries),
        "cheats": sum(bool(entry.check) for entry in entries),
        "controls": sum(not entry.check for entry in entries),
        "left out": dict(left_out),
        "surprises": list(surprises),
        "seconds": round(seconds),
        "cpu seconds": round(_cpu_seconds()),
        "torch": importlib.metadata.version("torch"),
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
    }


if __name__ == "__main__":
    sys.exit(main())
