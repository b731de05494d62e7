"""Repetitions of `fusewright bench` -> how often the interval holds the truth, and claims repeat.

    python3 bench/coverage.py PROBLEM[=CANDIDATE] ... [--repetitions 30] [--budget 60s]
        [--output out/coverage.jsonl]

Each repetition is one run of the command, with processes of its own; those of different problems
take turns, so that what the machine does meanwhile is spread over all of them. The truth is taken
to be the median of what all repetitions of a problem show. A claim is said again where another
repetition claims the same. What has been measured is kept in the output, and not measured again.

Prints, for each problem: the ratio over eager, how far repetitions lie apart, the half-width of
their intervals, how many intervals hold the truth, the claims, and how often a claim is said again.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

COMMAND = (sys.executable, "-m", "fusewright")
LEVEL = "no difference shown"


def main() -> None:
    options = _options()
    problems = [_pair(word, options) for word in options.problems]
    options.output.parent.mkdir(parents=True, exist_ok=True)
    rows = _kept(options.output)
    for number in range(options.repetitions):
        for problem, candidate in problems:
            if (str(problem), number) not in {(row["problem"], row["number"]) for row in rows}:
                row = _bench(problem, candidate, options)
                if row is not None:
                    rows.append({"problem": str(problem), "number": number, **row})
                    with options.output.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(rows[-1]) + "\n")
    names = [str(problem) for problem, _ in problems]
    _show({name: [row for row in rows if row["problem"] == name] for name in names})


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("problems", nargs="+", metavar="PROBLEM[=CANDIDATE]")
    parser.add_argument("--repetitions", type=int, default=30)
    parser.add_argument("--budget", default="60s", help="of one run of bench")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--output", type=Path, default=Path("out/coverage.jsonl"))
    return parser.parse_args()


def _pair(word: str, options: argparse.Namespace) -> tuple[Path, Path]:
    """A problem and its candidate; where none is given, what `optimize` makes of it."""
    problem, _, candidate = word.partition("=")
    if candidate:
        return Path(problem), Path(candidate)
    made = options.output.parent / f"{Path(problem).stem}_fused.py"
    if not made.exists():
        made.parent.mkdir(parents=True, exist_ok=True)
        words = (*COMMAND, "optimize", problem, "--no-verify", "--output", str(made))
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    return Path(problem), made


def _bench(problem: Path, candidate: Path, options: argparse.Namespace) -> dict[str, Any] | None:
    """What one run says of the ratio over eager; None where its clocks are unclear."""
    words = ("bench", str(problem), str(candidate), "--against", "eager", "--json")
    more = ("--budget", options.budget, "--device", options.device)
    done = subprocess.run((*COMMAND, *words, *more), capture_output=True, text=True, check=False)
    try:
        timing = json.loads(done.stdout)["timing"]
        ratio = timing["ratios"]["eager"]
    except (ValueError, KeyError, TypeError):
        sys.stderr.write(f"{problem}: not counted: {done.stderr.strip()[-300:]}\n")
        return None
    eager_s = timing["sides"]["eager"]["p50_s"]
    return {name: ratio[name] for name in ("median", "low", "high", "claim")} | {"eager_s": eager_s}


def _kept(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _show(found: dict[str, list[dict[str, Any]]]) -> None:
    table = Table(
        "problem", "runs", "eager", "ratio", "runs' 10 to 90 %", "± of a run", "covered", "claims",
        "said again", box=None,
    )  # fmt: skip
    covered = said = again = runs = 0
    for name, rows in found.items():
        if len(rows) < 2:  # nothing is said of repetitions
            continue
        medians = [row["median"] for row in rows]
        truth = statistics.median(medians)
        tenths = statistics.quantiles(medians, n=10)
        half = statistics.median(math.log(row["high"] / row["low"]) / 2 for row in rows)
        held = sum(row["low"] <= truth <= row["high"] for row in rows)
        claims = Counter(row["claim"] for row in rows)
        pairs, same = _again(claims, len(rows))
        eager_s = statistics.median(row["eager_s"] for row in rows)
        table.add_row(
            Path(name).stem, str(len(rows)), f"{eager_s * 1e3:.3f} ms", f"{truth:.3f}",
            f"{tenths[0]:.3f} to {tenths[-1]:.3f}", f"{half:.1%}", f"{held / len(rows):.0%}",
            ", ".join(f"{what} {n}" for what, n in claims.most_common()),
            f"{same / pairs:.0%}" if pairs else "",
        )  # fmt: skip
        runs, covered, said, again = runs + len(rows), covered + held, said + pairs, again + same
    console = Console(width=160)
    console.print(table)
    if runs:
        text = f"{covered} of {runs} intervals hold the truth ({covered / runs:.1%})"
        repeated = (
            f"; a claim is said again by {again / said:.1%} of the other runs" if said else ""
        )
        console.print(text + repeated)


def _again(claims: Counter[str], runs: int) -> tuple[int, int]:
    """Claims and other runs: pairs of them, and those in which the other says the same."""
    made: Sequence[int] = [n for claim, n in claims.items() if claim != LEVEL]
    return sum(n * (runs - 1) for n in made), sum(n * (n - 1) for n in made)


if __name__ == "__main__":
    main()
