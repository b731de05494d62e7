"""The same twice: entries of the corpus judged alone and beside busy neighbours, then compared.

    python bench/twice.py [--busy 2] [--held 0.0] [--every 12] [--output FILE.json] [NAME]...

Word, failing checks, what was planned, how many cases each check has, and the names of all cases
must be the same. The secret seed is: another one draws other numbers, and may leave out other cases
where a problem is too costly for all. Nothing is timed here. Without an installed fusewright:
PYTHONPATH=. python3 bench/twice.py
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from fusewright.judge import judging
from fusewright.judge.findings import Verdict
from fusewright.judge.request import Limits, Request
from tests.support.corpus import Entry, cheats, controls, lacking, options_for

SEED = "3c" * 16
SPINNING = "while True: pass"
HOLDING = """
import re, sys, time
free = int(re.search(r"MemAvailable: +(\\d+)", open("/proc/meminfo").read())[1]) << 10
held = bytearray(b"x") * int(free * float(sys.argv[1]))
print(len(held), flush=True)
time.sleep(1e6)
"""


def main() -> int:
    options = _arguments()
    told = [_compare(entry, options) for entry in _chosen(options)]
    different = [row for row in told if row["differences"]]
    print(f"{len(told)} entries, {len(different)} of them judged otherwise")
    if options.output:
        options.output.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    return 1 if different else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--busy", type=int, default=2, help="spinning neighbours for each core")
    parser.add_argument(
        "--held", type=float, default=0.0, help="share of the free memory they hold"
    )
    parser.add_argument("--every", type=int, default=12, help="entries: one of so many")
    parser.add_argument("--output", type=Path, help="a file for all that was compared, as JSON")
    parser.add_argument("names", nargs="*", help="entries; a sample of all if none is named")
    return parser.parse_args()


def _chosen(options: argparse.Namespace) -> list[Entry]:
    every = [e for e in (*cheats(), *controls()) if not e.on_gpu and not lacking(e)]
    plain = [e for e in every if "timing" not in e.needs and "sanitize" not in e.needs]
    if options.names:
        return [entry for entry in plain if entry.name in options.names]
    return plain[:: options.every]


def _compare(entry: Entry, options: argparse.Namespace) -> dict[str, object]:
    begin = time.monotonic()
    alone = says(_judged(entry))
    middle = time.monotonic()
    with neighbours(options.busy, options.held):
        beside = says(_judged(entry))
    found = differences(alone, beside)
    seconds = [round(middle - begin, 1), round(time.monotonic() - middle, 1)]
    print(
        f"{entry.name}: {alone['word']}, {seconds} s{''.join('; ' + d for d in found)}", flush=True
    )
    return {"entry": entry.name, "alone": alone, "differences": found, "seconds": seconds}


def _judged(entry: Entry) -> Verdict:
    fields = {**options_for(entry), "timing": False}
    fields["limits"] = Limits(**fields.get("limits", {}))  # type: ignore[arg-type]
    for name in ("only", "ignored", "against"):
        fields.pop(name, None)
    request = Request(entry.problem, entry.path, seed=SEED, **fields)  # type: ignore[arg-type]
    return judging.judge_request(request, lambda _: None)


def says(verdict: Verdict) -> dict[str, object]:
    """All of a verdict that neither load nor chance may change."""
    return {
        "word": verdict.verdict,
        "failing": sorted(row.check for row in verdict.checks if row.outcome == "fail"),
        "cases": {row.check: row.cases for row in verdict.checks},
        "counts": verdict.replay["counts"],
        "asked": verdict.replay["asked"],
    }


def differences(one: Mapping[str, object], other: Mapping[str, object]) -> list[str]:
    return [f"{name}: {one[name]} and {other[name]}" for name in one if one[name] != other[name]]


@contextmanager
def neighbours(busy: int, held: float) -> Iterator[None]:
    """Programs that keep every core busy, and one that holds memory."""
    orders: list[Sequence[str]] = [[SPINNING]] * (busy * len(os.sched_getaffinity(0)))
    others = [subprocess.Popen([sys.executable, "-c", *order]) for order in orders]
    if held:
        command = [sys.executable, "-c", HOLDING, str(held)]
        others.append(subprocess.Popen(command, stdout=subprocess.PIPE))
        assert others[-1].stdout is not None
        others[-1].stdout.readline()
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


if __name__ == "__main__":
    sys.exit(main())
