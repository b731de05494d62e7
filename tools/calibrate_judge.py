"""The judge's yardstick -> false alarms, misses and margins: `tools/calibrate_judge.py 6 100`.

Runs every honest and every bad implementation of tests/support/judge_zoo.py through the accuracy
contract (own inputs and value hazards) and the probes, for as many seeds as the first argument says
(10), from the second one on (0), and prints the table of docs/judge-calibration.md. Of later draws
it asks whether eager alone would decide, and whether float64 agrees. The exit status is 1 if a
verdict is wrong.
"""

from __future__ import annotations

import importlib.util
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

ZOO = Path(__file__).resolve().parent.parent / "tests" / "support" / "judge_zoo.py"


def load_zoo() -> ModuleType:
    spec = importlib.util.spec_from_file_location("judge_zoo", ZOO)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def stage(said: list[str]) -> str:
    """Which part would have caught it first."""
    if any(line.startswith("own:") for line in said):
        return "own inputs"
    kinds = {line.split(":")[1].strip() for line in said}
    contract = {"values", "accuracy", "nonfinite", "structure"}
    return "hazard inputs" if kinds & contract else "probes only"


def main(seeds: int = 10, first: int = 0) -> int:
    torch.set_num_threads(1)  # the tensors are small: threads would only wait for each other
    zoo = load_zoo()
    total: Counter[str] = Counter()
    print("| model | honest | alarms | worst margin | bad | missed | least margin | caught by |")
    print("|---|---:|---:|---:|---:|---:|---:|---|", flush=True)
    for entry in zoo.ZOO:
        count: Counter[str] = Counter()
        caught: Counter[str] = Counter()
        worst, least = 0.0, float("inf")
        for seed in range(first, first + seeds):
            for good, models in ((True, entry.honest), (False, entry.bad)):
                margins: dict[str, float] = {}
                for name, said in zoo.complaints(entry, models, seed, margins=margins).items():
                    count["honest" if good else "bad"] += 1
                    if good:
                        worst = max(worst, margins[name])
                        count["alarms"] += bool(said)
                    else:
                        least = min(least, margins[name])
                        count["missed"] += not said
                        caught[stage(said)] += bool(said)
                    if good == bool(said):
                        print(f"WRONG: {entry.name}, {name}, seed {seed}: {said[:2]}", flush=True)
            total += _by_eager(zoo, entry, seed)
        by = ", ".join(f"{kind} {n}" for kind, n in sorted(caught.items()))
        print(
            f"| {entry.name} | {count['honest']} | {count['alarms']} | {worst:.2f} "
            f"| {count['bad']} | {count['missed']} | {least:.3g} | {by} |",
            flush=True,
        )
        total += count
    print(
        f"{total['honest']} honest, {total['alarms']} false alarms; "
        f"{total['bad']} bad, {total['missed']} missed; seeds {first} to {first + seeds - 1}"
    )
    print(
        f"later draws: {total['outputs']} outputs, {total['alone']} that eager alone decides, "
        f"{total['unlike']} of these wrong by float64"
    )
    return int(total["alarms"] + total["missed"] + total["unlike"] > 0)


def _by_eager(zoo: ModuleType, entry: Any, seed: int) -> Counter[str]:
    """Of later draws: outputs, those that eager alone decides, and wrong ones among them."""
    count: Counter[str] = Counter()
    for name, alone, said in zoo.by_eager(entry, {**entry.honest, **entry.bad}, seed):
        count["outputs"] += 1
        count["alone"] += alone
        count["unlike"] += alone and bool(said)
        if alone and said:
            print(f"UNLIKE: {entry.name}, {name}, seed {seed}: {said}", flush=True)
    return count


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:3])))
