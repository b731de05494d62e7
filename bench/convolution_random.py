"""Random convolutions with random tails -> ours beside eager, torch.compile and PyTorch's own
routine with our tail, a row each; their means.

    python bench/convolution_random.py [--count 100] [--seed 1] [--first 0] [--jobs N]
                                       [--least FLOPS]

Needs an NVIDIA H100 or H200, nvcc and torch. Model NUMBER of a seed is always the same: --first
continues an earlier run. Each row is one interleaved run, as in bench/compare.py. `over apart`: how
many times as long PyTorch's own routine takes with our tail, where a kernel of ours stands in for
it; empty where none does. --least replaces the least number of operations for which one is taken.
"""

from __future__ import annotations

import random
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import repeat
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

from compare import drawn, medians, ready, workers  # noqa: E402

from fusewright.compiler.compilation import make  # noqa: E402
from fusewright.ir.graph import toposort  # noqa: E402
from fusewright.kernels.conv import match as convolution  # noqa: E402
from fusewright.kernels.conv.match import came_from_conv  # noqa: E402
from fusewright.targets.detect import resolve_target  # noqa: E402

ROUNDS = 9
LARGE = 2e9  # operations, from which on the mean counts
LEAST_FLOPS, MOST_FLOPS, MOST_ELEMENTS = 2.0**28, 2.0**37, 2.0**27
CHANNELS = (8, 12, 16, 24, 32, 48, 64, 96, 128, 160, 192, 256)
SIDES = {1: (256, 1000, 4096, 16384), 2: (14, 20, 28, 32, 56, 64, 96, 112), 3: (8, 12, 16, 24, 32)}
TAILS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "gelu": F.gelu,
    "mish": F.mish,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "hardswish": F.hardswish,
    "leaky_relu": F.leaky_relu,
    "clamp": lambda x: torch.clamp(x, -0.5, 0.5),
    "double": lambda x: x * 2.0,
    "softplus": F.softplus,
}


@dataclass(frozen=True)
class Trial:
    """One random model."""

    rank: int
    transposed: bool
    images: int
    channels: int
    results: int
    side: int
    kernel: int
    stride: int
    pad: int
    dilation: int
    groups: int
    tail: tuple[str, ...]

    @property
    def out(self) -> int:
        reach = self.dilation * (self.kernel - 1)
        if self.transposed:
            return (self.side - 1) * self.stride - 2 * self.pad + reach + 1
        return (self.side + 2 * self.pad - reach - 1) // self.stride + 1

    @property
    def flops(self) -> float:
        depth = self.channels // self.groups * self.kernel**self.rank
        pixels = self.side if self.transposed else self.out
        return float(2 * self.images * self.results * pixels**self.rank * depth)

    @property
    def fits(self) -> bool:
        if self.out <= 0 or not LEAST_FLOPS <= self.flops <= MOST_FLOPS:
            return False
        sizes = (self.channels * self.side**self.rank, self.results * self.out**self.rank)
        return bool(self.images * max(sizes) <= MOST_ELEMENTS)

    def model(self) -> nn.Module:
        name = f"Conv{'Transpose' * self.transposed}{self.rank}d"
        layer = getattr(nn, name)(
            self.channels, self.results, self.kernel, stride=self.stride, padding=self.pad,
            dilation=self.dilation, groups=self.groups,
        )  # fmt: skip
        return Tailed(layer, self.tail)

    def input(self) -> Tensor:
        return torch.randn(self.images, self.channels, *(self.side,) * self.rank)


class Tailed(nn.Module):
    """A convolution and what follows it."""

    def __init__(self, layer: nn.Module, tail: tuple[str, ...]) -> None:
        super().__init__()
        self.layer, self.tail = layer, tail

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(x)
        for name in self.tail:
            x = TAILS[name](x)
        return x


def trial(seed: int, number: int) -> Trial:
    """Model `number` of a seed."""
    dice = random.Random(f"{seed} {number}")
    while True:
        rank, kernel = dice.choice((1, 2, 2, 2, 3)), dice.choice((1, 2, 3, 3, 3, 4, 5, 7))
        groups = dice.choice((1, 1, 1, 1, 1, 2))
        found = Trial(
            rank,
            dice.random() < 0.3,
            dice.choice((2, 4, 8, 16, 32, 64, 128)),
            dice.choice(CHANNELS) * groups,
            dice.choice(CHANNELS) * groups,
            dice.choice(SIDES[rank]),
            kernel,
            dice.choice((1, 1, 1, 2)),
            dice.choice((0, kernel // 2)),
            dice.choice((1, 1, 1, 1, 2)),
            groups,
            tuple(dice.choice(list(TAILS)) for _ in range(dice.randint(0, 4))),
        )
        if found.fits:
            return found


def measure(given: Trial, least: int | None, rounds: int) -> dict[str, float]:
    """Milliseconds of each way; with 0 rounds, the compilers' caches are filled."""
    plans = dict(convolution.LEAST_FLOPS)
    torch.manual_seed(0)
    torch._dynamo.reset()
    model, x = given.model(), given.input()
    try:
        if least is not None:
            convolution.LEAST_FLOPS = dict.fromkeys(plans, least)
        sides = ready(model, x, compiled=True)
        machine, _ = resolve_target("cuda")
        graph = make(given.model(), [x], machine).captured.graph
        if any(n.row.kind == "contraction" and came_from_conv(n) for n in toposort(graph.roots)):
            convolution.LEAST_FLOPS = dict.fromkeys(plans, 1 << 62)
            sides.append(replace(ready(model, x, compiled=False)[0], name="apart"))
    finally:
        convolution.LEAST_FLOPS = plans
    times = medians(sides, x, rounds)
    torch.cuda.empty_cache()
    return times


OTHERS = {"eager": "eager", "compile": "torch.compile", "apart": "PyTorch's with our tail"}


def mean(rows: list[tuple[Trial, dict[str, float]]], name: str) -> None:
    """Print the geometric means of how many times as long the others take, and the worst."""
    for side, other in OTHERS.items():
        over = [times[side] / times["ours"] for _, times in rows if side in times]
        if over:
            middle, least = statistics.geometric_mean(over), min(over)
            below = sum(ratio < 1 for ratio in over)
            text = f"{middle:.2f}x {other} (worst {least:.2f}, {below} of {len(over)} below 1)"
            print(f"{name}: {text}")


def text(number: int, given: Trial, times: dict[str, float]) -> str:
    """A row of the table."""
    over = [f"{times[s] / times['ours']:.2f}" if s in times else "" for s in OTHERS]
    size, kernel = f"{given.flops / 1e9:.3g}", "apart" in times
    cells = [number, given, size, kernel, f"{times['ours']:.4f}", *over]
    return f"| {' | '.join(map(str, cells))} |"


def means(rows: list[tuple[Trial, dict[str, float]]]) -> None:
    """Print those of all rows, and of those that have more work or kernels of ours."""
    print()
    kernels, large = (
        [r for r in rows if "apart" in r[1]],
        [r for r in rows if r[0].flops >= LARGE],
    )
    mean(rows, "all")
    mean(kernels, "kernels of ours")
    mean(large, "2 GFLOP or more")
    mean([r for r in large if r in kernels], "2 GFLOP or more, kernels of ours")


HEAD = f"| number | model | GFLOP | kernel | ours ms | {' | '.join(f'over {o}' for o in OTHERS)} |"


def main() -> None:
    given = drawn(__doc__, 100, None, "FLOPS")
    trials = {k: trial(given.seed, k) for k in range(given.first, given.first + given.count)}
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, seed {given.seed}\n")
    print(f"{HEAD}\n|---|---|---:|---|---:|---:|---:|---:|")
    rows = []
    with workers(given.jobs) as pool:
        list(pool.map(measure, trials.values(), repeat(given.least), repeat(0)))
        found = pool.map(measure, trials.values(), repeat(given.least), repeat(ROUNDS))
        for (number, t), times in zip(trials.items(), found, strict=True):
            rows.append((t, times))
            print(text(number, t, times), flush=True)
    means(rows)


if __name__ == "__main__":
    main()
