"""Models of public shapes, ours beside eager and torch.compile -> a Markdown table.

python bench/backend.py [resnet18 ...] [--kind inference|training ...] [--api] [--rounds N] [--warm]

Ours is torch.compile(model, backend="fusewright"); with --api, fusewright.optimize(model, x).
Inference is a call in eval mode without gradients; a training step is forward, loss and backward in
train mode. A round calls each side once, in random order, on inputs of the round; a call is timed
with a device that waits for nothing before it. Numbers are medians, and quartiles of the ratios
within a round. `first` is what the first call of ours took, in seconds, with all that was compiled
for it. Results and gradients are compared with float64: the largest distance of ours over that of
eager. --warm: only compile, so that several processes may do it beside each other.
"""

from __future__ import annotations

import argparse
import copy
import random
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial

import torch
from public_shapes import PublicShape, public_shapes
from torch import Tensor, nn

import fusewright

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
KINDS = ("inference", "training")
MODES = {"inference": "eval", "training": "train"}
Call = Callable[[Tensor], list[Tensor]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    shapes = public_shapes(small=DEVICE == "cpu")
    parser.add_argument("names", nargs="*", default=[*shapes])
    parser.add_argument("--kind", nargs="*", default=KINDS)
    parser.add_argument("--api", action="store_true")
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--warm", action="store_true")
    given = parser.parse_args()
    print("| model | kind | ours ms | eager ms | torch.compile ms | eager/ours | compile/ours |")
    print("|---|---|---|---|---|---|---|")
    for name in given.names:
        for kind in given.kind:
            row = _row(shapes[name], kind, given.rounds, api=given.api, warm=given.warm)
            print(f"| {name} | {kind} | {row} |", flush=True)


def _row(shape: PublicShape, kind: str, rounds: int, *, api: bool, warm: bool) -> str:
    torch.compiler.reset()
    torch.manual_seed(0)
    model = shape.make().to(DEVICE).train(kind == "training")
    sides: dict[str, Call] = {}
    x = shape.draw().to(DEVICE)
    begin = time.perf_counter()
    for name, backend in (("ours", "fusewright"), ("eager", ""), ("torch.compile", "inductor")):
        own = copy.deepcopy(model)
        if api and name == "ours":
            options = {"gradients": kind == "training", "mode": MODES[kind]}
            own = fusewright.optimize(own, x, options=options)
            backend = ""
        run = torch.compile(own, backend=backend) if backend else own
        sides[name] = partial(_step, own, run, shape, kind)
    ours = sides["ours"](x)
    _wait()
    first = time.perf_counter() - begin
    exact = copy.deepcopy(model).double()
    double = x.double() if x.is_floating_point() else x
    right = _step(exact, exact, shape, kind, double)
    worst = _worst(ours, sides["eager"](x), right)
    del exact, right, ours
    if warm:
        sides["torch.compile"](x)
        return f"warm | first {first:.1f} s, distance {worst:.2f} of eager's"
    for _ in range(3):
        for side in sides.values():
            side(x)
    times = [_round(sides, shape.draw().to(DEVICE)) for _ in range(rounds)]
    cells = [f"{statistics.median(t[name] for t in times) * 1e3:.3f}" for name in sides]
    for other in ("eager", "torch.compile"):
        low, middle, high = statistics.quantiles((t[other] / t["ours"] for t in times), n=4)
        cells.append(f"{middle:.2f} ({low:.2f} to {high:.2f})")
    return f"{' | '.join(cells)} | first {first:.1f} s, distance {worst:.2f} of eager's"


def _step(
    own: nn.Module, run: Callable[..., Tensor], shape: PublicShape, kind: str, x: Tensor
) -> list[Tensor]:
    """The result, and in training the gradients, which are new at each step."""
    if kind == "inference":
        with torch.no_grad():
            return [run(x)]
    own.zero_grad()
    result = run(x)
    torch.autograd.backward(shape.loss(result, x))
    return [result.detach(), *(p.grad for p in own.parameters() if p.grad is not None)]


def _worst(ours: list[Tensor], eagers: list[Tensor], exact: list[Tensor]) -> float:
    """The largest ratio of two distances, each with a rounding of the largest element added."""
    found = []
    for mine, eager, right in zip(ours, eagers, exact, strict=True):
        least = torch.finfo(mine.dtype).eps * right.abs().max()
        mines, eagers_own = ((t.double() - right).abs().max() + least for t in (mine, eager))
        found.append(float(mines / eagers_own))
    return max(found)


def _round(sides: Mapping[str, Call], x: Tensor) -> dict[str, float]:
    """Seconds of one call of each side."""
    order = random.sample([*sides], len(sides))
    return {name: _timed(partial(sides[name], x)) for name in order}


def _timed(call: Callable[[], object]) -> float:
    _wait()
    begin = time.perf_counter()
    call()
    _wait()
    return time.perf_counter() - begin


def _wait() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
