"""Product kernels with bias and ReLU -> a Markdown table of times and errors beside PyTorch's own.

python bench/product.py [--arch sm_90a] [--only 1024x8192x8192] [--sustained] [--inline]

Needs an NVIDIA GPU, nvcc and torch. Every time includes packing one factor, or, with --inline, both
are split on the fly and nothing but the result is written. 256 MB are overwritten
before each launch, so nothing is in L2. Variants are separated by a pause: heat lowers clocks.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from tests.support import gemm_subjects as subjects  # noqa: E402
from tests.support.gemm_subjects import PARTS, WIDTHS, Call, Library, Subject  # noqa: E402

# rows x columns x depth
SHAPES = (
    "1024x8192x8192", "32768x4096x1024", "12288x5120x5120", "160x24576x24576", "96x12288x12288",
    "3072x6144x6144", "8192x6144x2048", "4096x4096x4096", "2048x2048x2048", "512x4096x4096",
    "128x8192x8192",
)  # fmt: skip
VARIANTS = tuple(
    Subject("bias_relu", width, swapped, 0, 4) for width in WIDTHS for swapped in (False, True)
)
LAUNCHES, PAUSE_S, FLUSH_BYTES, ERROR_ROWS = 15, 0.25, 256 << 20, 64


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

    def eager(self) -> Tensor:
        return torch.nn.functional.linear(self.x, self.weight, self.bias).relu()

    def error(self, result: Tensor) -> float:
        """Relative Frobenius error of the chosen rows."""
        wrong = result[self.chosen].double() - self.exact
        return float((wrong.norm() / self.exact.norm()).item())


def layer(shape: str) -> Layer:
    rows, columns, depth = (int(size) for size in shape.split("x"))
    torch.manual_seed(0)
    x = torch.randn(rows, depth, device="cuda")
    weight = torch.randn(columns, depth, device="cuda") / depth**0.5
    bias = torch.randn(columns, device="cuda")
    chosen = torch.randperm(rows, device="cuda")[:ERROR_ROWS]
    pieces = [x[chosen].double() @ w.double().T for w in weight.split(4096)]
    return Layer(x, weight, bias, chosen, (torch.cat(pieces, 1) + bias.double()).relu())


def cold_ms(run: Callable[[], object], scratch: Tensor) -> float:
    """The time of one launch on a cold L2."""
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    scratch.zero_()
    start.record()
    run()
    stop.record()
    stop.synchronize()
    return float(start.elapsed_time(stop))


def median_ms(run: Callable[[], object], scratch: Tensor) -> float:
    """The median of LAUNCHES runs on a cold L2."""
    for _ in range(3):
        run()
    return statistics.median(cold_ms(run, scratch) for _ in range(LAUNCHES))


def sustained_ms(run: Callable[[], object], seconds: float = 1.5) -> float:
    """The time of one launch when they follow each other for so long."""
    run()
    torch.cuda.synchronize()
    begin, count = time.perf_counter(), 0
    while time.perf_counter() - begin < seconds:
        for _ in range(20):
            run()
        torch.cuda.synchronize()
        count += 20
    return (time.perf_counter() - begin) / count * 1e3


def launcher(library: Library, subject: Subject, job: Layer) -> tuple[Callable[[], None], Tensor]:
    """What runs one variant, and where its result goes."""
    out = torch.full((job.x.shape[0], job.weight.shape[0]), float("nan"), device="cuda")
    packed = job.x if subject.swapped else job.weight
    space = torch.empty(subjects.workspace_bytes(packed, subject), dtype=torch.uint8, device="cuda")
    call = Call(job.x, job.weight, job.bias, job.bias, out, space)

    def run() -> None:
        code = call.launch(library, subject)
        if code:
            raise RuntimeError(f"{subject.entry} returned CUDA error {code}")

    return run, out


def measure(
    library: Library, shape: str, variants: Sequence[Subject], scratch: Tensor, sustained: bool
) -> bool:
    """Print the rows of one shape; whether no variant is less accurate than eager or 2.4e-7."""
    job = layer(shape)
    clock = sustained_ms if sustained else lambda run: median_ms(run, scratch)
    time.sleep(PAUSE_S)
    theirs, limit = clock(job.eager), max(job.error(job.eager()), 2.0**-22)
    rows, good = [], True
    for subject in variants:
        run, out = launcher(library, subject, job)
        time.sleep(PAUSE_S)
        rows.append((clock(run), subject, job.error(out)))
        good &= rows[-1][2] <= limit
        del run, out
        torch.cuda.empty_cache()
    print(line(shape, "eager", theirs, job.flops, 1.0, job.error(job.eager())))
    best = min(row[0] for row in rows)
    for ours, subject, error in rows:
        side, how = ("x", "weight")[not subject.swapped], "across" if subject.inline else "packed"
        name = f"{subject.width} {side} {how}"
        name = f"**{name}**" if ours == best else name
        print(line(shape, name, ours, job.flops, theirs / ours, error), flush=True)
    return good


def line(shape: str, name: str, ms: float, flops: float, ratio: float, error: float) -> str:
    return f"| {shape} | {name} | {ms:.4f} | {flops / ms / 1e9:.0f} | {ratio:.2f} | {error:.2e} |"


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--arch", choices=tuple(PARTS), default="sm_90a")
    options.add_argument("--only", metavar="MxNxK", help="one shape, any")
    options.add_argument("--sustained", action="store_true", help="back to back for 1.5 s instead")
    options.add_argument("--inline", action="store_true", help="nothing is packed")
    given = options.parse_args()
    variants = tuple(replace(s, inline=given.inline) for s in VARIANTS)
    if not torch.cuda.is_available():
        print("bench/product.py finds no CUDA GPU to time on: run it where there is one.")
        return 3
    scratch = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    good = True
    with tempfile.TemporaryDirectory() as folder:
        library = subjects.libraries([given.arch], variants, Path(folder))[given.arch]
        print(
            f"{torch.cuda.get_device_name()}, torch {torch.__version__}, kernels for {given.arch}"
        )
        print("\n| rows x columns x depth | variant | ms | TFLOP/s | of eager | error |")
        print("|---|---|---:|---:|---:|---:|")
        for shape in [given.only] if given.only else SHAPES:
            good &= measure(library, shape, variants, scratch, given.sustained)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
