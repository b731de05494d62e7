"""Random small products through prebuilt product kernels -> those that differ from float64.

python bench/product_fuzz.py [--arch sm_90a] [--count 10000] [--seed 1] [--only NUMBER]

Needs an NVIDIA GPU, nvcc and torch. Problem NUMBER of a seed is always the same, so that a failure
can be run alone.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from tests.support import gemm_subjects as subjects  # noqa: E402
from tests.support.gemm_subjects import (  # noqa: E402
    BETWEEN,
    EXTRAS,
    PARTS,
    SCHEDULES,
    SHARED,
    Call,
    Library,
    Subject,
)

SUBJECTS = (*SCHEDULES, *BETWEEN, *EXTRAS, *SHARED)
LARGEST = 300
# Of one element, in units of (norm of its left row) x (norm of its right row).
PRODUCT_TOLERANCE = 4e-7
MARGIN, MARK = 64, -12345.5

P = TypeVar("P")


@dataclass(frozen=True)
class Trial:
    """One random problem."""

    subject: Subject
    batches: int
    rows: int
    columns: int
    depth: int
    layouts: tuple[str, str]  # left, right
    scale: float

    def __str__(self) -> str:
        sizes = f"{self.batches} x {self.rows}x{self.columns}x{self.depth}"
        return f"{self.subject.entry} {sizes}, {' and '.join(self.layouts)}, scale {self.scale:g}"


def size(dice: random.Random, largest: int = LARGEST) -> int:
    """Log-uniform from 1 to `largest`."""
    return min(largest, int(float(largest + 1) ** dice.random()))


def trial(seed: int, number: int, arch: str) -> Trial:
    """Problem `number` of a seed."""
    dice = random.Random(f"{seed} {number}")
    subject = dice.choice([s for s in SUBJECTS if arch != "sm_80" or s not in BETWEEN])
    if arch == "sm_80":
        subject = replace(subject, parts=0)
    step = max(subject.segment, subject.vector)
    columns = -(-size(dice) // step) * step
    split = dice.choice(("dense", "sliced", "shared"))
    packed = dice.choice(("dense", "sliced", "shared", "transposed", "every other", "shifted"))
    layouts = (packed, split) if subject.swapped else (split, packed)
    batches = dice.choice((1, 1, 1, 2, 5))
    if layouts == ("shared", "shared"):
        layouts = ("dense", "shared")
    scale = 10.0 ** dice.choice((0, 0, 0, -12, 12))
    return Trial(
        subject, batches, size(dice), columns, 4 * size(dice, LARGEST // 4), layouts, scale
    )


def factor(layout: str, batches: int, rows: int, depth: int, scale: float) -> Tensor:
    """A random factor, laid out as asked."""
    shape = (rows, depth) if layout == "shared" or batches == 1 else (batches, rows, depth)
    dense = torch.randn(shape, device="cuda") * scale
    if layout == "sliced":
        return torch.nn.functional.pad(dense, (0, 4), value=9.0)[..., :depth]
    if layout == "transposed":
        return dense.mT.contiguous().mT
    if layout == "every other":
        return dense.repeat_interleave(2, -1)[..., ::2]
    if layout == "shifted":
        return torch.cat([dense.new_zeros(1), dense.flatten()])[1:].view(shape)
    return dense


def run(
    library: Library, given: Trial, left: Tensor, right: Tensor, ins: tuple[Tensor, Tensor]
) -> Tensor:
    """The result; NaN or a mark where the kernel did not write, or wrote outside."""
    subject = given.subject
    columns = given.columns // (subject.segment if subject.body == "row_sum" else 1)
    count = given.batches * given.rows * columns
    room = torch.full((count + 2 * MARGIN,), MARK, device="cuda")
    need = subjects.workspace_bytes(left if subject.swapped else right, subject)
    space = torch.full((need,), 0xFF, dtype=torch.uint8, device="cuda")
    out = room[MARGIN : MARGIN + count]
    code = Call(left, right, *ins, out, space).launch(library, subject)
    outside = torch.cat([room[:MARGIN], room[MARGIN + count :]])
    if code or not bool((outside == MARK).all()):
        return torch.full_like(out, float("nan")).view(given.batches, given.rows, columns)
    return out.view(given.batches, given.rows, columns)


def excess(library: Library, given: Trial, seed: int) -> float:
    """The largest error over what is allowed: fine up to 1."""
    torch.manual_seed(seed)
    left = factor(given.layouts[0], given.batches, given.rows, given.depth, given.scale)
    right = factor(given.layouts[1], given.batches, given.columns, given.depth, 1 / given.scale)
    ins = subjects.operands(given.subject, given.batches, given.rows, given.columns, "cuda")
    actual = run(library, given, left, right, ins).double()
    product = left.double() @ right.double().mT
    product = product.view(given.batches, given.rows, given.columns)
    expected = subjects.meaning(given.subject, product, *ins)
    if given.subject.segment == 0:
        norms = left.double().norm(dim=-1).unsqueeze(-1) * right.double().norm(dim=-1).unsqueeze(-2)
        allowed = PRODUCT_TOLERANCE * norms + 2e-7 * expected.abs() + 4e-7 * _tail_size(given, ins)
    else:
        plain = torch.matmul(left, right.mT).view_as(product)
        typical = (subjects.meaning(given.subject, plain, *ins).double() - expected).abs().max()
        allowed = 1e-5 * (expected.abs() + expected.square().mean().sqrt()) + 8 * typical
    found = ((actual - expected).abs() / allowed).max().item()
    return found if found == found else float("inf")


def _tail_size(given: Trial, ins: tuple[Tensor, Tensor]) -> float:
    """The size of what a map adds to the product, whose sum is rounded once more."""
    return 0.0 if given.subject.body == "copy" else max(t.abs().max().item() for t in ins)


def fuzz(
    numbers: Sequence[int],
    where: str,
    problem_of: Callable[[int], P],
    excess_of: Callable[[P, int], float],
) -> int:
    """Try every problem, print those that are wrong and a summary; 1 if there are any, else 0."""
    start, wrong, worst = time.perf_counter(), 0, 0.0
    for number in numbers:
        problem = problem_of(number)
        found = excess_of(problem, number)
        worst = max(worst, found)
        if found > 1:
            wrong += 1
            print(f"problem {number}: {problem}: {found:.3g} of what is allowed", flush=True)
    print(f"{where}, {time.perf_counter() - start:.0f} s:")
    print(f"{len(numbers)} problems, {wrong} wrong, worst {worst:.3f} of what is allowed")
    return 1 if wrong else 0


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--arch", choices=tuple(PARTS), default="sm_90a")
    options.add_argument("--count", type=int, default=10000)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--only", type=int, metavar="NUMBER", help="this problem alone")
    given = options.parse_args()
    if not torch.cuda.is_available():
        print("bench/product_fuzz.py finds no CUDA GPU to run on: run it where there is one.")
        return 3
    numbers = range(given.count) if given.only is None else [given.only]
    with tempfile.TemporaryDirectory() as folder:
        library = subjects.libraries([given.arch], SUBJECTS, Path(folder))[given.arch]
        where = f"{given.arch} on {torch.cuda.get_device_name()}, seed {given.seed}"
        return fuzz(
            numbers,
            where,
            lambda number: trial(given.seed, number, given.arch),
            lambda problem, number: excess(library, problem, given.seed * 1_000_003 + number),
        )


if __name__ == "__main__":
    sys.exit(main())
