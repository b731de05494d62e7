"""Steps launched one by one and at once, in files for a GPU that differ in nothing else -> a
Markdown table.

python bench/launches.py network_super_resolution [NAME ...] [--large] [--mode train|eval]

Names of zoo/. A round calls each side once, on inputs of the round, then ten times in a row; a call
is timed with a device that waits for nothing before it, and once more by a GPU which the host is
ahead of. Numbers are medians of 41 rounds, in us.
"""

from __future__ import annotations

import argparse
import statistics
from functools import partial
from typing import Any

import torch
from modes import BEFORE, ZOO, at_size, called, drawn, timed, written

from fusewright.common.problem_file import Problem, load_problem
from fusewright.fusion import replay

ROUNDS, IN_A_ROW = 41, 10
# Fewest launches of a file whose steps are launched at once.
SIDES = {"one by one": 1_000_000, "at once": replay.FEWEST_LAUNCHES}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="+")
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--mode", choices=("train", "eval"), default="eval")
    given = parser.parse_args()
    print("| problem | side | one call | ten in a row, each | GPU |\n|---|---|---|---|---|")
    for name in given.names:
        short = name.removeprefix("network_")
        problem = at_size(short) if given.large else load_problem(ZOO / f"{name}.py")
        for row in _rows(problem, train=given.mode == "train"):
            print(row, flush=True)


@torch.no_grad()
def _rows(problem: Problem, *, train: bool) -> list[str]:
    sides: dict[str, Any] = {}
    for side, fewest in SIDES.items():
        replay.FEWEST_LAUNCHES = fewest
        sides[side] = written(problem, "cuda").cuda().train(train)
    state = sides["at once"].state_dict()
    sides["one by one"].load_state_dict(state)
    for _ in range(BEFORE + 1):
        inputs = drawn(problem, "cuda")
        both = [model(*inputs) for model in sides.values()]
        torch.testing.assert_close(*both, rtol=1e-2, atol=1e-3)
    assert type(sides["at once"]).fusewright_status().get("at once"), "it is launched one by one"
    rounds = [_round(sides, drawn(problem, "cuda")) for _ in range(ROUNDS)]
    every = (
        (side, [statistics.median(r[side][k] for r in rounds) for k in range(3)]) for side in sides
    )
    return [
        f"| {problem.path.stem} | {side} | {' | '.join(f'{us:.1f}' for us in times)} |"
        for side, times in every
    ]


def _round(sides: dict[str, Any], inputs: list[Any]) -> dict[str, list[float]]:
    """Microseconds of a call, of one of several in a row, and of the GPU alone."""
    found = {}
    for side, model in sides.items():
        once, several = (partial(called, model, inputs, calls) for calls in (1, IN_A_ROW))
        times = [timed(once, "cuda"), timed(several, "cuda") / IN_A_ROW]
        found[side] = [s * 1e6 for s in (*times, timed(once, "cuda", ahead=True))]
    return found


if __name__ == "__main__":
    main()
