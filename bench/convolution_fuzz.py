"""Random small convolutions through prebuilt kernels -> those that differ from float64.

python bench/convolution_fuzz.py [--arch sm_80] [--dtype bfloat16 | --full] [--count 3000]
    [--seed 1] [--only NUMBER]

Needs an NVIDIA H100 or H200, nvcc and torch; kernels of sm_80 run on any GPU since Ampere.
Problem NUMBER of a seed is always the same, so that a failure can be run alone.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

from product_fuzz import fuzz  # noqa: E402

from tests.support import conv_subjects as convolutions  # noqa: E402
from tests.support.conv_subjects import (  # noqa: E402
    BETWEEN,
    CELLS,
    EXTRAS,
    FULL,
    HALF_BETWEEN,
    HALVES,
    LAST,
    OWN_PHASES,
    SCHEDULES,
    TRANSPOSED,
    Problem,
    Subject,
)
from tests.support.gemm_subjects import PARTS, Library  # noqa: E402

SUBJECTS = (*SCHEDULES, *EXTRAS, *TRANSPOSED, *HALVES, *FULL, *LAST, *CELLS)
OF_HOPPER = (*BETWEEN, *HALF_BETWEEN, *OWN_PHASES)
# Of images that are large or small: their sizes.
SIZES = {
    torch.float32: (1e20, 1e-20), torch.bfloat16: (1e20, 1e-20), torch.float16: (1e3, 1e-6),
}  # fmt: skip
TYPES = {str(dtype).removeprefix("torch."): dtype for dtype in SIZES}
PIXELS = {1: 300, 2: 40, 3: 12}  # along each dimension, at most
MOST_FLOPS = 3e8
# How images are made: name -> how often.
KINDS = {"plain": 6, "positive": 1, "spike": 1, "blocks": 1, "huge": 1, "tiny": 1, "sparse": 1}


@dataclass(frozen=True)
class Trial:
    """One random problem."""

    subject: Subject
    problem: Problem
    kind: str

    def __str__(self) -> str:
        return f"{self.subject.entry}, {self.kind}, {self.problem}"


def size(dice: random.Random, largest: int) -> int:
    """Log-uniform from 1 to `largest`."""
    return min(largest, int(float(largest + 1) ** dice.random()))


def _problem(dice: random.Random) -> Problem | None:
    rank = dice.choice((1, 2, 2, 2, 3))
    every = range(rank)
    groups = dice.choice((1, 1, 1, 2, 3))
    transposed = dice.random() < 0.4
    kernel = tuple(dice.choice((1, 2, 3, 3, 5)) for _ in every)
    low = tuple(dice.randint(0, k // 2 + 1) for k in kernel)
    high = low if transposed else tuple(dice.randint(0, k // 2 + 1) for k in kernel)
    pad = tuple(zip(low, high, strict=True))
    stride = tuple(dice.choice((1, 1, 1, 2, 3)) for _ in every)
    if transposed:
        stride = tuple(dice.choice((1, 2, 2, 2, 3, 4, 5)) for _ in every)
    dilation = tuple(dice.choice((1, 1, 1, 2)) for _ in every)
    most = zip(stride, dilation, strict=True)
    found = Problem(
        dice.choice((1, 1, 2, 3, 9)),
        size(dice, 130) * groups,
        size(dice, 300) * groups,
        tuple(size(dice, PIXELS[rank]) for _ in every),
        kernel,
        stride,
        pad if dice.random() < 0.7 else ((0, 0),) * rank,
        dilation,
        groups,
        transposed,
        tuple(dice.randint(0, max(s, d) - 1) for s, d in most) if transposed else (),
    )
    fits = min(found.out_size) > 0 and found.flops < MOST_FLOPS
    return found if fits else None


def fits(subject: Subject, problem: Problem) -> bool:
    """Whether it is a kernel for this kind of convolution."""
    columns = problem.out_channels if subject.last else prod(problem.out_size)
    takes = columns % subject.vector == 0 and (problem.groups == 1 or not subject.last)
    return takes and subject.together == problem.together


def cells_of(dice: random.Random, problem: Problem) -> tuple[int, int, int]:
    """A pixel, a stride or a kernel along each dimension."""
    every = zip(problem.kernel, problem.steps, problem.spread, strict=True)
    found = [dice.choice([1, k, k, *[s] * 2 * (s < k and d == 1)]) for k, s, d in every]
    depth, height, width = (*(1,) * (3 - len(found)), *found)
    return depth, height, width


def trial(seed: int, number: int, some: Sequence[Subject]) -> Trial:
    """Problem `number` of a seed, for one of `some` kernels."""
    dice = random.Random(f"{seed} {number}")
    problem = None
    while problem is None:
        problem = _problem(dice)
    subject = dice.choice([s for s in some if fits(s, problem)])
    kind = dice.choices(tuple(KINDS), tuple(KINDS.values()))[0]
    if subject.cells:
        problem = replace(problem, cells=cells_of(dice, problem))
    return Trial(subject, problem, kind)


def image_of(given: Trial) -> Tensor:
    image, dtype = given.problem.image(), given.subject.dtype
    flat = image.flatten()
    if given.kind == "positive":
        image.abs_()
    elif given.kind == "spike":
        flat[torch.randint(flat.numel(), (1,))] = 6e4 if dtype is torch.float16 else 1e6
    elif given.kind == "blocks":
        scales = torch.tensor([1.0, 1e-3, 1e-6, 1e-9], device="cuda")
        chosen = torch.randint(4, (flat.numel() // 100 + 1,), device="cuda")
        flat *= scales[chosen].repeat_interleave(100)[: flat.numel()]
    elif given.kind == "sparse":
        flat *= torch.rand_like(flat) < 0.003
    scale = dict(zip(("huge", "tiny"), SIZES[dtype], strict=True)).get(given.kind, 1.0)
    return (image * scale).to(dtype)


def excess(library: Library, given: Trial, seed: int) -> float:
    """The largest error over what is allowed: fine up to 1."""
    torch.manual_seed(seed)
    image, weight = image_of(given), given.problem.weight().to(given.subject.dtype)
    in0 = convolutions.operand(given.subject, given.problem)
    subject, problem = given.subject, given.problem
    out, code, outside = convolutions.guarded(library, subject, problem, image, weight, in0)
    if code or outside:
        return float("inf")
    truth = convolutions.exact(problem, image, weight, subject.parts)
    return convolutions.excess(subject, truth, in0, out)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--arch", choices=tuple(PARTS), default="sm_90a")
    options.add_argument("--dtype", choices=tuple(TYPES), default="float32")
    options.add_argument("--full", action="store_true", help="float32 without TF32")
    options.add_argument("--count", type=int, default=3000)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--only", type=int, metavar="NUMBER", help="this problem alone")
    given = options.parse_args()
    capability = torch.cuda.get_device_capability() if torch.cuda.is_available() else (0, 0)
    if capability != (9, 0) and not (given.arch == "sm_80" and capability >= (8, 0)):
        print(f"bench/convolution_fuzz.py needs a GPU that runs {given.arch}.")
        return 3
    numbers = range(given.count) if given.only is None else [given.only]
    with tempfile.TemporaryDirectory() as folder:
        dtype, parts = TYPES[given.dtype], 2 if given.full else 1
        every = (*SUBJECTS, *OF_HOPPER) if given.arch == "sm_90a" else SUBJECTS
        some = [s for s in every if s.dtype is dtype and s.parts == parts]
        some = [s for s in some if given.arch == "sm_90a" or not s.last]
        library = convolutions.library(some, Path(folder), arch=given.arch)
        return fuzz(
            numbers,
            f"{torch.cuda.get_device_name()}, {given.arch}, {given.dtype}, seed {given.seed}",
            lambda number: trial(given.seed, number, some),
            lambda problem, number: excess(library, problem, given.seed * 1_000_003 + number),
        )


if __name__ == "__main__":
    sys.exit(main())
