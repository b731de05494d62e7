"""Stands in for `fusewright judge` and `bench` in an arena: a candidate's first line says what it
is worth: `# right 2.0` (times as fast as eager), `# wrong`, `# crashes`, `# unclear`, `# breaks` or
`# odd` (its clocks).

It keeps a journal beside the arena's output: a line for each command.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
from pathlib import Path
from typing import Any

CLOSE = 0.05  # of the logarithm: closer candidates cannot be told apart


def stand_in(arguments: list[str]) -> None:
    sys.exit(main(arguments))


def main(arguments: list[str]) -> int:
    report = Path(dict(itertools.pairwise(arguments))["--report"])
    command, _problem, *paths = arguments[: arguments.index("--report")]
    root = next(p for p in report.parents if p.name == "out").parent
    with (root / "journal").open("a") as file:
        file.write(f"{command} {' '.join('/'.join(Path(p).parts[-2:]) for p in paths)}\n")
    worth = {path: Path(path).read_text().splitlines()[0].split()[1:] for path in paths}
    if command == "judge":
        ((word, *_),) = worth.values()
        if word == "crashes":
            os.abort()
        verdict = {"wrong": "refuted", "unclear": "not-verified"}.get(word, "verified")
        report.write_text(json.dumps({"verdict": verdict, "reason": f"it is {word}"}))
        return {"verified": 0, "refuted": 1, "not-verified": 3}[verdict]
    told = contest_of(worth)
    if len(paths) == 1:  # as the command reports one
        told = next(iter(told["timings"].values()), None)
    report.write_text(json.dumps({"reason": "it broke", "timing": told}, sort_keys=True))
    return 0 if told else 3


def contest_of(worth: dict[str, list[str]]) -> dict[str, Any]:
    speed = {path: float(words[1]) for path, words in worth.items() if words[0] == "right"}
    best = max(speed.values(), default=1.0)
    return {
        "timings": {
            path: {
                "sides": {"candidate": {"p50_s": 1e-3 / x}, "eager": {"p50_s": 1e-3}},
                "ratios": {"eager": _ratio(x, "faster" if x > 1.1 else "no difference shown")},
            }
            for path, x in speed.items()
        },
        "over_best": {
            path: _ratio(x / best, "slower" if x < best * (1 - CLOSE) else "no difference shown")
            for path, x in speed.items()
        },
        "lost": {path: "it broke" for path, words in worth.items() if words[0] == "breaks"},
        "unclear": {path: "hidden work" for path, words in worth.items() if words[0] == "odd"},
    }


def _ratio(median: float, claim: str) -> dict[str, Any]:
    return {
        "median": median,
        "low": median * 0.9,
        "high": median * 1.1,
        "pairs": 30,
        "claim": claim,
    }
