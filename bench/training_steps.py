"""Training steps of problem files, ours beside others -> a Markdown table.

python bench/training_steps.py [zoo/network_unet.py ...] [--target cuda|cpu] [--warm] [--rounds 51]

A file is written with `--gradients`. A step is forward in train mode and backward, with random
gradients of all results, as they come from a loss. A round calls each side once, in random order,
on inputs of the round; a call is timed with a device that waits for nothing before it. Numbers are
medians, and quartiles of the ratios within a round. Results and gradients are compared with
float64: the largest distance of ours over that of eager, of all tensors together. --warm: only
compile, so that several processes may do it beside each other.
"""

from __future__ import annotations

import argparse
import copy
import random
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from modes import BEFORE, NAMES, ROUNDS, ZOO, drawn, timed, written
from torch import Tensor, nn

from fusewright.common.problem_file import load_problem
from fusewright.judge.evidence.pytree import mapped, tensors, upcast

Step = Callable[[list[Any]], list[Tensor]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    known = [ZOO / f"{name}.py" for name in NAMES]
    parser.add_argument("problems", nargs="*", type=Path, default=known)
    parser.add_argument("--target", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--warm", action="store_true")
    given = parser.parse_args()
    print(
        "| problem | ours ms | eager ms | torch.compile ms | eager/ours | compile/ours | distance |"
    )
    print("|---|---|---|---|---|---|---|")
    for path in given.problems:
        try:
            row = _row(path, given.target, given.rounds, warm=given.warm)
        except Exception as error:  # noqa: BLE001 - the others are still to be measured
            row = f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
        print(f"| {path.stem} | {row} |", flush=True)


def _row(path: Path, target: str, rounds: int, *, warm: bool) -> str:
    torch.compiler.reset()
    torch.manual_seed(0)
    problem, device = load_problem(path), "cuda" if target == "cuda" else "cpu"
    eager = problem.make_model().to(device).train()
    ours = written(problem, target, gradients=True).to(device).train()
    compiled = copy.deepcopy(eager)
    ours.load_state_dict(eager.state_dict())
    compiled.compile()
    sides = {"ours": ours, "eager": eager, "torch.compile": compiled}
    steps = {name: partial(_step, side) for name, side in sides.items()}
    inputs = drawn(problem, device)
    distance = _distance(eager, ours, inputs)
    for _ in range(BEFORE):
        for step in steps.values():
            step(inputs)
    status = type(ours).fusewright_status()
    if status["reference_forward"]:
        return f"as written: {status['because']}"
    if warm:
        return "warm"
    found: list[dict[str, float]] = []
    for _ in range(rounds):
        inputs, order = drawn(problem, device), random.sample([*steps], len(steps))
        found.append({name: timed(partial(steps[name], inputs), device) for name in order})
    cells = [f"{statistics.median(r[name] for r in found) * 1e3:.4f}" for name in steps]
    for other in ("eager", "torch.compile"):
        low, middle, high = statistics.quantiles((r[other] / r["ours"] for r in found), n=4)
        cells.append(f"{middle:.2f} ({low:.2f} to {high:.2f})")
    return " | ".join([*cells, f"{distance:.2f}"])


def _step(model: nn.Module, inputs: list[Any]) -> list[Tensor]:
    """Results, and gradients of the parameters."""
    model.zero_grad(set_to_none=True)
    results = tensors(model(*inputs))
    kept = [r for r in results if r.requires_grad]
    torch.autograd.backward(kept, [torch.full_like(r, 1e-2) for r in kept])
    grads = (p.grad for p in model.parameters())
    return [*(r.detach() for r in results), *(g for g in grads if g is not None)]


def _distance(eager: nn.Module, ours: nn.Module, inputs: list[Any]) -> float:
    """Of ours to float64 over that of eager."""
    wide = copy.deepcopy(eager).double()
    exact = _step(wide, list(mapped(inputs, upcast)))
    torch.manual_seed(0)
    theirs = _apart(_step(copy.deepcopy(eager), inputs), exact)
    return _apart(_step(copy.deepcopy(ours), inputs), exact) / (theirs + 1e-300)


def _apart(found: list[Tensor], exact: list[Tensor]) -> float:
    """The root of the mean square, each tensor in units of its largest element."""
    assert len(found) == len(exact), "as many gradients"
    scaled = [
        ((f.double() - e.double()) / (e.double().abs().max() + 1e-300)).square().mean()
        for f, e in zip(found, exact, strict=True)
        if e.is_floating_point()
    ]
    return float(torch.stack(scaled).mean().sqrt())


if __name__ == "__main__":
    main()
