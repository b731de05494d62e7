"""Whether a target is planned from what the model means: every problem of a folder, in float64.

    python bench/meaning.py [--target sm_90a] [--folder zoo] [NAMES]

No GPU is needed: the graph behind all stages of a target is interpreted by PyTorch, and so is the
captured one. Exit 1 if any two differ by more than 1e-12 of the largest element.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from functools import partial
from pathlib import Path

import torch

from fusewright.common.problem_file import NO_OVERRIDES, load_problem
from fusewright.compiler.compilation import design
from fusewright.frontend.capture import capture, state_of
from fusewright.ir.graph import Graph
from fusewright.ir.interpreter import interpret
from fusewright.targets.target import TARGETS

ZOO, MOST = Path(__file__).parent.parent / "zoo", 1e-12


def difference(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """The largest difference over the largest element; equal infinities and NaN do not differ."""
    a, b = found.double(), wanted.double()
    if a.shape != b.shape:
        return float("inf")
    if not b.numel():
        return 0.0
    off = (a - b).abs().masked_fill((a == b) | (a.isnan() & b.isnan()), 0)
    largest = b.abs().nan_to_num(0, 0).max().clamp_min(1e-300)
    return float((off / largest).nan_to_num(torch.inf).max())


@torch.no_grad()
def apart(path: Path, target: str) -> float:
    """How far a target's graph of a problem is from the captured one."""
    torch.set_num_threads(1)
    problem = load_problem(path, NO_OVERRIDES)
    torch.manual_seed(0)
    module, inputs = problem.make_model(), problem.make_inputs()
    given = capture(module, inputs)
    state, tensors = state_of(given, module), [x for x in inputs if isinstance(x, torch.Tensor)]

    def results(graph: Graph) -> list[torch.Tensor]:
        torch.manual_seed(1)
        return interpret(graph, tensors, state, dtype=torch.float64)

    planned = results(design(given, TARGETS[target]).captured.graph)
    wanted = results(given.graph)
    return max((difference(*both) for both in zip(planned, wanted, strict=True)), default=0.0)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--target", default="sm_90a", choices=sorted(TARGETS))
    parser.add_argument("--folder", type=Path, default=ZOO)
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    paths = [options.folder / f"{name}.py" for name in options.names]
    paths = paths or sorted(options.folder.glob("*.py"))
    worst = 0.0
    with multiprocessing.get_context("spawn").Pool(maxtasksperchild=16) as pool:
        work = pool.imap(partial(apart, target=options.target), paths)
        for path, found in zip(paths, work, strict=True):
            print(f"{path.stem:40} {found:.1e}", flush=True)
            worst = max(worst, found)
    print(f"{len(paths)} problems on {options.target}, the worst {worst:.1e}")
    sys.exit(worst > MOST)


if __name__ == "__main__":
    main()
