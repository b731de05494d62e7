"""Random Linear layers with ReLU -> ours and eager, a row each; the means.

    python bench/product_random.py [--count 512] [--seed 1] [--first 0] [--jobs N] [--least SIZE]

Needs an NVIDIA GPU, nvcc and torch. rows, columns and depth are log-uniform from 1 to 20,000, odd
ones among them; layer NUMBER of a seed is always the same, and --first continues an earlier run.
--least leaves out those whose rows * columns * depth are fewer.
Each row is one interleaved run, as in bench/compare.py, of the file that `optimize` writes: with
everything that `forward` does. `kernel`: whether the product is a kernel of ours.
"""

from __future__ import annotations

import math
import random
import statistics
import sys
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path

import torch
from torch import Tensor, nn

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

from compare import drawn, medians, ready, workers  # noqa: E402

from fusewright.compiler.compilation import make  # noqa: E402
from fusewright.targets.detect import resolve_target  # noqa: E402

ROUNDS, LARGEST = 9, 20_000
LARGE = 1 << 30  # rows * columns * depth, from which on the mean counts


class Layer(nn.Module):
    def __init__(self, depth: int, columns: int) -> None:
        super().__init__()
        self.linear = nn.Linear(depth, columns)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.linear(x))


@dataclass(frozen=True)
class Trial:
    """One random layer."""

    rows: int
    columns: int
    depth: int

    @property
    def size(self) -> int:
        return self.rows * self.columns * self.depth

    @property
    def kernel(self) -> bool:
        """Whether its product is a kernel of ours; nothing is computed."""
        machine, _ = resolve_target("cuda")
        with torch.device("meta"):
            layer, x = Layer(self.depth, self.columns), torch.empty(self.rows, self.depth)
        made = make(layer, [x], machine)
        return any(kernel.anchor for kernel in made.plan.kernels)


@dataclass(frozen=True)
class Row:
    """What was measured of one layer."""

    size: int
    kernel: bool
    ratio: float


def trial(seed: int, number: int) -> Trial:
    """Layer `number` of a seed."""
    dice = random.Random(f"{seed} {number}")
    return Trial(*(round(math.exp(dice.uniform(0, math.log(LARGEST)))) for _ in range(3)))


def measure(given: Trial, rounds: int) -> tuple[dict[str, float], bool]:
    """Milliseconds of ours and of eager, and whether there is a kernel of ours; with 0 rounds, the
    compilers' caches are filled."""
    torch.manual_seed(0)
    layer, x = Layer(given.depth, given.columns), torch.randn(given.rows, given.depth)
    times = medians(ready(layer, x, compiled=False), x, rounds)
    torch.cuda.empty_cache()
    return times, given.kernel


def mean(rows: list[Row], what: str) -> None:
    if rows:
        value = math.exp(statistics.fmean(math.log(row.ratio) for row in rows))
        worst = min(row.ratio for row in rows)
        print(f"{what}: {len(rows)}, geometric mean {value:.2f}x eager, worst {worst:.2f}x")


def main() -> None:
    given = drawn(__doc__, 512, 0, "SIZE")
    every = {k: trial(given.seed, k) for k in range(given.first, given.first + given.count)}
    trials = {k: t for k, t in every.items() if t.size >= given.least}
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, seed {given.seed}\n")
    print("| number | rows x columns x depth | kernel | ours ms | eager ms | of eager |")
    print("|---|---|---|---:|---:|---:|")
    rows = []
    with workers(given.jobs) as pool:
        list(pool.map(measure, trials.values(), repeat(0)))
        found = pool.map(measure, trials.values(), repeat(ROUNDS))
        for (number, t), (times, kernel) in zip(trials.items(), found, strict=True):
            row = Row(t.size, kernel, times["eager"] / times["ours"])
            rows.append(row)
            cells = [number, f"{t.rows}x{t.columns}x{t.depth}", row.kernel]
            cells += [f"{times['ours']:.4f}", f"{times['eager']:.4f}", f"{row.ratio:.2f}"]
            print(f"| {' | '.join(map(str, cells))} |", flush=True)
    print()
    mean(rows, "all")
    mean([row for row in rows if row.kernel], "kernels of ours")
    mean([row for row in rows if row.size >= LARGE], "2^30 or more")


if __name__ == "__main__":
    main()
