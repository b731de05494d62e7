"""Every mutant of every subject, or of given candidate files: how many does the judge refute?

    python bench/mutation.py [--device cuda] [--truth rows|whole] [--report R.json]
                             [CANDIDATE.py PROBLEM.py]...

Without files it takes those that fusewright emits for the problems of tests/support/mutation.py.
The score leaves out what the compiler refuses and what is no mistake. Survivors are listed with
file, line and mistake: each is a gap of the judge.
"""

from __future__ import annotations

import argparse
import collections
import json
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.support.mutation import HARMLESS, Result, all_mutants, mutants, study


def main() -> int:
    options = _arguments()
    pairs = [
        (Path(c), Path(p)) for c, p in zip(options.files[::2], options.files[1::2], strict=True)
    ]
    given = [mutant for subject, problem in pairs for mutant in mutants(subject, problem)]
    chosen = given or all_mutants()
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        results = study(
            chosen, Path(folder), {"device": options.device, "truth": options.truth}, _progress
        )
    counts = collections.Counter(result.fate for result in results)
    built = counts["killed"] + counts["survived"] + counts["undecided"]
    score = counts["killed"] / built if built else 0.0
    print(f"{counts['killed']} of {built} mutants refuted ({score:.1%})")
    print(f"{counts['unbuilt']} do not compile; {time.monotonic() - begin:.0f} s")
    for check, number in _first_checks(results).most_common():
        print(f"  {number:4} {check}")
    for result in results:
        if result.fate in ("survived", "undecided"):
            print(f"{result.fate}: {_describe(result)}")
    if not pairs:
        for (subject, operator), why in HARMLESS.items():
            print(f"not counted: {subject} {operator}: {why}")
    if options.report:
        options.report.write_text(json.dumps([_row(r) for r in results], indent=1) + "\n")
    return 0 if score >= 0.98 else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--truth", default="rows", choices=("rows", "whole"), help="as of judge")
    parser.add_argument("--report", type=Path)
    parser.add_argument("files", nargs="*", help="pairs of a candidate and its problem")
    return parser.parse_args()


def _progress(result: Result) -> None:
    print(f"{result.fate:9} {result.mutant.name} ({', '.join(result.outcome.failing)})", flush=True)


def _first_checks(results: list[Result]) -> collections.Counter[str]:
    """How many mutants each check is among the refuters of."""
    return collections.Counter(
        check for result in results if result.fate == "killed" for check in result.outcome.failing
    )


def _describe(result: Result) -> str:
    mutant = result.mutant
    return f"{mutant.subject.name}:{mutant.line} {mutant.operator.name}: {mutant.operator.mistake}"


def _row(result: Result) -> dict[str, object]:
    return {
        "mutant": result.mutant.name, "line": result.mutant.line, "fate": result.fate,
        "mistake": result.mutant.operator.mistake, "failing": list(result.outcome.failing),
        "verdict": result.outcome.verdict,
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
