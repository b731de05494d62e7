"""Every schedule that the tuner may give a product kernel -> how far the default is from the best.

    python bench/schedules.py [--only 1024x8192x8192] [--rounds 9] [--every]

Needs an NVIDIA H100 or H200, nvcc and torch. A Linear with ReLU is captured for each shape, and its
schedules are those of `--tune full`. The kernels are timed as they run in emitted files, packing
included; 256 MB are overwritten before each launch, so nothing is in L2. Each round launches every
schedule once, in random order, and the default twice. A ratio is the median over rounds of the
default's time over the other's; "chance" is what may be noise in its logarithm. --every prints all
schedules, the best first. The exit status is 1 if a default takes 10 % longer than the best, or if
a result is wrong.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from ctypes import CDLL
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

from product import FLUSH_BYTES, PAUSE_S, cold_ms, launcher, layer  # noqa: E402
from product_random import Layer  # noqa: E402

from fusewright.compiler.compilation import NO_RULES, make  # noqa: E402
from fusewright.kernels.gemm.tile import GemmTile, NoSplit  # noqa: E402
from fusewright.kernels.registry import Strategy  # noqa: E402
from fusewright.targets.target import TARGETS  # noqa: E402
from fusewright.tune.paired_timing import AGAIN, FIRST, Samples, Speedup, gain  # noqa: E402
from fusewright.tune.search_space import choices  # noqa: E402
from tests.support.gemm_subjects import Library, Subject, build, code_for, source  # noqa: E402

# rows x columns x depth
SHAPES = (
    "1024x8192x8192", "32768x4096x1024", "12288x5120x5120", "160x24576x24576", "96x12288x12288",
    "3072x6144x6144", "8192x6144x2048", "8192x1536x6144", "4096x4096x4096", "512x4096x4096",
    "128x8192x8192",
)  # fmt: skip
ARCH, WHAT, ALLOWED = "sm_90a", "kernel", 1.10
LARGEST_ERROR = 2.0**-21


@dataclass(frozen=True)
class Space:
    """The schedules of one layer's kernel."""

    default: Subject
    others: tuple[Subject, ...]

    @property
    def every(self) -> tuple[Subject, ...]:
        return (self.default, *self.others)


def space(shape: str) -> Space:
    """What the tuner sees; nothing is computed."""
    rows, columns, depth = (int(size) for size in shape.split("x"))
    with torch.device("meta"):
        made = make(Layer(depth, columns), [torch.empty(rows, depth)], TARGETS[ARCH])
    plan = made.plan
    found = choices(made.kernels, made.shared, plan, NO_RULES, lambda _: plan)
    ((name, default),) = found.defaults.items()
    return Space(subject(default), tuple(map(subject, found.others.get(name, ()))))


def subject(tile: Strategy) -> Subject:
    assert isinstance(tile, GemmTile)
    parts = 0 if isinstance(tile.reduce, NoSplit) else tile.reduce.parts
    return Subject("bias_relu", tile.width, tile.swap_operands, 0, tile.vector, parts=parts)


def library(subjects: Iterable[Subject], folder: Path) -> Library:
    """Kernels differ by tile and side only: those of one kind are compiled once, for all shapes."""
    some = sorted(set(subjects), key=lambda s: (s.width, s.swapped, s.parts))
    kinds = [tuple(group) for _, group in groupby(some, lambda s: (s.width, s.swapped))]
    code = code_for(ARCH, (9, 0))

    def compiled(number: int) -> CDLL:
        target = folder / f"kind_{number}.so"
        build(source(ARCH, kinds[number]), target, code)
        return CDLL(str(target))

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        loaded = list(pool.map(compiled, range(len(kinds))))
    return Library({s.entry: of for of, kind in zip(loaded, kinds, strict=True) for s in kind})


def timed(
    kernels: Library, shape: str, given: Space, rounds: int, scratch: Tensor
) -> tuple[Samples, float]:
    """Seconds of every schedule in every round, by its entry, and the largest error of a result."""
    job = layer(shape)
    runs, worst = {}, 0.0
    for each in given.every:
        runs[each.entry], out = launcher(kernels, each, job)
        runs[each.entry]()
        worst = max(worst, job.error(out))
    runs = {FIRST: runs[given.default.entry], AGAIN: runs.pop(given.default.entry), **runs}
    samples: dict[str, list[Mapping[str, float]]] = {name: [] for name in runs}
    time.sleep(PAUSE_S)
    for _ in range(rounds):
        for name in random.sample(list(runs), len(runs)):
            samples[name].append({WHAT: cold_ms(runs[name], scratch) / 1e3})
    return samples, worst


def row(shape: str, samples: Samples, default: Subject, other: Subject, found: Speedup) -> str:
    times = [middle_ms(samples, name) for name in (FIRST, entry_of(other, default))]
    cells = [shape, text(default), f"{times[0]:.4f}", text(other), f"{times[1]:.4f}"]
    return f"| {' | '.join([*cells, f'{found.times:.3f}', f'{found.noise:.3f}'])} |"


def entry_of(other: Subject, default: Subject) -> str:
    return FIRST if other == default else other.entry


def middle_ms(samples: Samples, name: str) -> float:
    return float(torch.tensor([each[WHAT] for each in samples[name]]).median()) * 1e3


def text(of: Subject) -> str:
    side = "weight" if of.swapped else "x"
    return f"{of.width}, {side} split" + f", {of.parts} parts" * (of.parts > 0)


def measure(
    kernels: Library, shape: str, given: Space, options: argparse.Namespace, scratch: Tensor
) -> bool:
    """Print the best of one shape; whether the default is near it and all results are right."""
    samples, error = timed(kernels, shape, given, options.rounds, scratch)
    torch.cuda.empty_cache()
    gains = {s: gain(samples, entry_of(s, given.default), WHAT) for s in given.every}
    order = sorted(gains, key=lambda s: gains[s].log, reverse=True)
    for other in order if options.every else order[:1]:
        print(row(shape, samples, given.default, other, gains[other]), flush=True)
    if error > LARGEST_ERROR:
        print(f"{shape}: a result is wrong by {error:.1e}")
    return gains[order[0]].times <= ALLOWED and error <= LARGEST_ERROR


def wanted(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--only", metavar="MxNxK", help="one shape, any")
    options.add_argument("--rounds", type=int, default=9)
    options.add_argument("--every", action="store_true", help="print every schedule")
    return options.parse_args(arguments)


def main() -> int:
    options = wanted()
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        print("bench/schedules.py needs a GPU of compute capability 9.0: run it where one is.")
        return 3
    spaces = {shape: space(shape) for shape in ([options.only] if options.only else SHAPES)}
    scratch = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    with tempfile.TemporaryDirectory() as folder:
        kernels = library((s for given in spaces.values() for s in given.every), Path(folder))
        print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {options.rounds} rounds")
        print("\n| rows x columns x depth | default | ms | best | ms | default / best | chance |")
        print("|---|---|---:|---|---:|---:|---:|")
        near = [measure(kernels, shape, given, options, scratch) for shape, given in spaces.items()]
    return 0 if all(near) else 1


if __name__ == "__main__":
    sys.exit(main())
