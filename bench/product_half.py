"""Product kernels of 16 bits with bias and ReLU -> a Markdown table beside cuBLAS alone.

python bench/product_half.py [--type bfloat16] [--only 4096x4096x4096] [--sustained]
                             [--width 256] [--head-start 2]

Needs an NVIDIA H100 or H200, nvcc and torch. 256 MB are overwritten before each launch, so nothing
is in L2. Variants are separated by a pause: heat lowers clocks. The ratio is cuBLAS alone, without
bias and ReLU, over the variant. Turned weights are stored as [in, out], k by k.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import linear

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

from product import FLUSH_BYTES, PAUSE_S, median_ms, sustained_ms  # noqa: E402

from tests.support import gemm_half_subjects as half_subjects  # noqa: E402
from tests.support.gemm_half_subjects import Half  # noqa: E402
from tests.support.gemm_subjects import WIDTHS, Library, Subject  # noqa: E402

# rows x columns x depth
SHAPES = (
    "4096x4096x4096", "1024x8192x8192", "32768x4096x1024", "12288x5120x5120", "160x24576x24576",
    "96x12288x12288", "3072x6144x6144", "8192x6144x2048", "8192x8192x8192", "2048x2048x2048",
    "512x4096x4096", "128x8192x8192", "1024x1024x1024",
)  # fmt: skip
TYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
ERROR_ROWS = 64
Clock = Callable[[Callable[[], object]], float]


def variants(dtype: torch.dtype) -> tuple[Half, ...]:
    """Every width and side, shared depth or not, tiles that a group has alone, and the widest tile
    with a turned weight."""
    plain = [
        Half(Subject("bias_relu", width, swapped, 0, 4 if swapped else 8, parts=parts), dtype)
        for width in WIDTHS
        for swapped in (False, True)
        for parts in (0, half_subjects.PARTS)
    ]
    own = [
        Half(Subject("bias_relu", w, False, 0, 8), dtype, own=True)
        for w in half_subjects.OWN_WIDTHS
    ]
    return (*plain, *own, Half(Subject("bias_relu", 256, False, 0, 4), dtype, (False, True)))


@dataclass(frozen=True)
class Layer:
    """One Linear with its input, and the rows whose exact result is known."""

    x: Tensor
    weight: Tensor
    bias: Tensor
    chosen: Tensor
    exact: Tensor

    @property
    def flops(self) -> float:
        return 2.0 * self.x.shape[0] * self.weight.numel()

    def error(self, result: Tensor) -> float:
        """Relative Frobenius error of the chosen rows."""
        wrong = result[self.chosen].double() - self.exact
        return float((wrong.norm() / self.exact.norm()).item())


def layer(shape: str, dtype: torch.dtype) -> Layer:
    rows, columns, depth = (int(size) for size in shape.split("x"))
    torch.manual_seed(0)
    x = torch.randn(rows, depth, device="cuda").to(dtype)
    weight = (torch.randn(columns, depth, device="cuda") / depth**0.5).to(dtype)
    bias = torch.randn(columns, device="cuda").to(dtype)
    chosen = torch.randperm(rows, device="cuda")[:ERROR_ROWS]
    pieces = [x[chosen].double() @ w.double().T for w in weight.split(4096)]
    return Layer(x, weight, bias, chosen, (torch.cat(pieces, 1) + bias.double()).relu())


def launcher(library: Library, half: Half, job: Layer) -> tuple[Callable[[], None], Tensor]:
    """What runs one variant, and where its result goes."""
    out = torch.full((job.x.shape[0], job.weight.shape[0]), float("nan"), device="cuda")
    out = out.to(half.dtype)
    weight = job.weight.T.contiguous().T if half.turned[1] else job.weight

    def run() -> None:
        code = half_subjects.launch(library, half, job.x, weight, job.bias, job.bias, out)
        if code:
            raise RuntimeError(f"{half.entry} returned CUDA error {code}")

    return run, out


def name_of(half: Half) -> str:
    side = "x wide" if half.subject.swapped else "weight wide"
    how = ", parts" * (half.subject.parts > 0) + ", weight turned" * half.turned[1]
    how += ", own" * half.own
    return f"{half.subject.width} {side}{how}"


def measure(library: Library, shape: str, halves: Sequence[Half], clock: Clock) -> bool:
    """Print the rows of one shape; whether no variant is less accurate than eager."""
    job = layer(shape, halves[0].dtype)
    eager = {
        "cuBLAS alone": lambda: linear(job.x, job.weight),
        "linear, bias, relu": lambda: linear(job.x, job.weight, job.bias).relu(),
    }
    times = {}
    for name, run in eager.items():
        time.sleep(PAUSE_S)
        times[name] = clock(run)
    theirs = job.error(eager["linear, bias, relu"]())
    alone = times["cuBLAS alone"]
    for name, ms in times.items():
        print(line(shape, name, ms, job.flops, alone / ms, theirs))
    rows, good = [], True
    for half in halves:
        run_ours, out = launcher(library, half, job)
        time.sleep(PAUSE_S)
        rows.append((clock(run_ours), name_of(half), job.error(out)))
        good &= rows[-1][2] <= theirs * 1.01
        del run_ours, out
        torch.cuda.empty_cache()
    best = min(ms for ms, _, _ in rows)
    for ms, name, error in rows:
        shown = f"**{name}**" if ms == best else name
        print(line(shape, shown, ms, job.flops, alone / ms, error), flush=True)
    return good


def line(shape: str, name: str, ms: float, flops: float, ratio: float, error: float) -> str:
    return f"| {shape} | {name} | {ms:.4f} | {flops / ms / 1e9:.0f} | {ratio:.3f} | {error:.2e} |"


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--type", choices=tuple(TYPES), default="bfloat16")
    options.add_argument("--only", metavar="MxNxK", help="one shape, any")
    options.add_argument("--sustained", action="store_true", help="back to back for 1.5 s instead")
    options.add_argument("--width", type=int, choices=WIDTHS, help="of tiles; all if not given")
    options.add_argument("--head-start", type=int, help="of one consumer group, instead of ours")
    given = options.parse_args()
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        print("bench/product_half.py needs a GPU of compute capability 9.0: run it where one is.")
        return 3
    scratch = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")

    def clock(run: Callable[[], object]) -> float:
        return sustained_ms(run) if given.sustained else median_ms(run, scratch)

    def edit(text: str) -> str:
        wanted = rf"\g<1>{given.head_start}" if given.head_start is not None else r"\g<0>"
        return re.sub(r"(HEAD_START = )\d+", wanted, text)

    halves = [h for h in variants(TYPES[given.type]) if given.width in (None, h.subject.width)]
    good = True
    with tempfile.TemporaryDirectory() as folder:
        library = half_subjects.library(halves, Path(folder), edit)
        print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {given.type}\n")
        print("| rows x columns x depth | variant | ms | TFLOP/s | of cuBLAS alone | error |")
        print("|---|---|---:|---:|---:|---:|")
        for shape in [given.only] if given.only else SHAPES:
            good &= measure(library, shape, halves, clock)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
