"""Random models on the CPU against float64: how many agree, and the text of each that does not.

python bench/fuzz_cpu.py --models 1000 --first 0
"""

from __future__ import annotations

import argparse
import copy
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from compiled import Case, build, prepare  # noqa: E402
from fuzz import program  # noqa: E402
from trials import wrong as wrong_of  # noqa: E402

from fusewright.errors import FusewrightError  # noqa: E402

TOGETHER = 40  # models per compilation


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--models", type=int, default=1000)
    options.add_argument("--first", type=int, default=0, help="the first seed")
    options.add_argument("--optimise", default="-O1", help="the compiler's level")
    given = options.parse_args()
    torch.set_num_threads(2)
    start, wrong, fused, calls = time.perf_counter(), 0, 0, 0
    counts = Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        for first in range(given.first, given.first + given.models, TOGETHER):
            seeds = range(first, min(first + TOGETHER, given.first + given.models))
            cases, failed = prepared(seeds, Path(folder))
            wrong += failed + judged(cases, Path(folder), given.optimise, counts)
            fused += sum(len(c.made.kernels) for c in cases)
            calls += sum(len(c.made.plan.libraries) for c in cases)
            done = seeds.stop - given.first
            print(f"{done} models, {wrong} wrong, {time.perf_counter() - start:.0f} s", flush=True)
    print(f"{fused} kernels and {calls} library calls in {given.models} models")
    print(", ".join(f"{count} {what}" for what, count in counts.items()))
    return 1 if wrong else 0


def prepared(seeds: range, folder: Path) -> tuple[list[Case], int]:
    cases, failed = [], 0
    for seed in seeds:
        path = folder / f"random_{seed}.py"
        path.write_text(program(seed), encoding="utf-8")
        try:
            cases.append(prepare(path))
        except (FusewrightError, AssertionError, ArithmeticError, LookupError, TypeError) as error:
            failed += 1
            print(f"seed {seed}: {type(error).__name__}: {error}\n{program(seed)}", flush=True)
    return cases, failed


def judged(cases: list[Case], folder: Path, optimise: str, counts: Counter[str]) -> int:
    wrong = 0
    for case, module in zip(cases, build(cases, folder, optimise), strict=True):
        ours, theirs = module.ModelNew(), copy.deepcopy(case.model)
        ours.load_state_dict(theirs.state_dict())
        found = list(wrong_of(ours, theirs, case.inputs, int(case.name[7:]), counts))
        if found:
            wrong += 1
            print(f"{case.name}: {found}\n{case.problem.source}", flush=True)
    return wrong


if __name__ == "__main__":
    sys.exit(main())
