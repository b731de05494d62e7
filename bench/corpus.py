"""The whole corpus through the whole judge, several times in a row: escapes, false alarms, flakes.

    python bench/corpus.py [--runs 10] [--gpu] [NAME]...

CI tries each cheat only on the experiments that can set off its check; here nothing is left out.
"""

from __future__ import annotations

import argparse
import collections
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from corpus import WORKERS, Entry, Outcome, cheats, controls, judged, lacking, options_for


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--gpu", action="store_true", help="the entries that need a GPU, too")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    entries = [
        entry
        for entry in (*cheats(), *controls())
        if (not options.names or entry.name in options.names)
        and (options.gpu or not entry.on_gpu)
        and not lacking(entry)
    ]
    wrong: collections.Counter[str] = collections.Counter()
    begin = time.monotonic()
    for run in range(1, options.runs + 1):
        with ThreadPoolExecutor(WORKERS) as pool:
            for entry, outcome in zip(entries, pool.map(_judged, entries), strict=True):
                complaint = _complaint(entry, outcome)
                if complaint:
                    wrong[entry.name] += 1
                    print(f"run {run}: {entry.name}: {complaint}\n{outcome}", flush=True)
        minutes = (time.monotonic() - begin) / 60
        print(f"run {run}: {len(entries)} entries, {sum(wrong.values())} wrong, {minutes:.1f} min")
    for name, times in wrong.most_common():
        print(f"{times} of {options.runs} runs: {name}")
    return 1 if wrong else 0


def _judged(entry: Entry) -> Outcome:
    return judged(entry.problem, entry.path, options_for(entry))


def _complaint(entry: Entry, outcome: Outcome) -> str:
    if entry.check and outcome.verdict != "refuted":
        return "escaped"
    if entry.check and entry.check not in outcome.failing:
        return f"was not refuted by {entry.check}"
    if not entry.check and outcome.verdict != "verified":
        return "is honest and was not verified"
    missing = sorted(set(entry.notes) - set(outcome.notes))
    return f"lacks the notes {', '.join(missing)}" if missing else ""


if __name__ == "__main__":
    sys.exit(main())
