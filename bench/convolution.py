"""Convolution kernels with their tails -> a Markdown table of times and errors beside PyTorch's.

python bench/convolution.py [--dtype bfloat16 | --full] [--arch sm_80] [--only NUMBER ...]
    [--all-chunks] [--no-compile]

Needs an NVIDIA H100 or H200, nvcc and torch; kernels of sm_80 run on any GPU since Ampere. Every
time includes packing image and weights. 256 MB are overwritten before each launch, so nothing is in
L2. Variants are separated by a pause: heat lowers clocks. The ratio is that of torch.compile over
the variant. The floor is what a copy of the input and the output would take. The last line of a job
shows the kernels of its fastest variant alone; they overlap. With --full, nobody rounds as TF32.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch
import torch._dynamo
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "bench")]

from product import FLUSH_BYTES, PAUSE_S, median_ms  # noqa: E402

from fusewright.kernels.conv.variants import FEW_CHANNELS, FLOAT32_WIDTHS  # noqa: E402
from tests.support import conv_subjects as convolutions  # noqa: E402
from tests.support.conv_subjects import (  # noqa: E402
    BETWEEN,
    CHUNKS,
    OWN_PHASES,
    WIDTHS,
    Problem,
    Subject,
    meaning,
)
from tests.support.gemm_subjects import PARTS, Library  # noqa: E402

KERNELS = (
    "pack_weights", "pack_image", "pack_half_image", "check_images", "conv_kernel",
)  # fmt: skip
TYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
COPIED_BYTES = 1 << 30
MOST_FEW = 3 * FEW_CHANNELS  # channels for which full float32 is tried with narrow tiles


def same(*pads: int) -> tuple[tuple[int, int], ...]:
    return tuple((pad, pad) for pad in pads)


# What comes behind each: the name of a body.
JOBS: tuple[tuple[Problem, str], ...] = (
    (Problem(128, 64, 128, (128, 128), (3, 3)), "bias_relu"),
    (Problem(32, 96, 160, (160, 160), (3, 3)), "mish_twice"),
    (Problem(64, 256, 256, (28, 28), (3, 3), pad=same(1, 1)), "copy"),
    (Problem(96, 12, 48, (224, 224), (5, 5), pad=same(2, 2)), "bias_sigmoid"),
    (Problem(16, 32, 64, (32, 32, 32), (3, 3, 3)), "bias_relu"),
    (Problem(48, 12, 40, (24, 56, 56), (3, 3, 3)), "copy"),
    (Problem(64, 96, 48, (96, 96), (4, 4), (2, 2), same(1, 1), transposed=True), "bias_relu"),
    (Problem(24, 48, 48, (12, 28, 28), (3, 3, 3), (2, 2, 2), transposed=True), "bias_relu"),
    # Few channels: those of one tile, half a tile, and one and a half.
    (Problem(16, 64, 32, (56, 56), (3, 3), pad=same(1, 1)), "copy"),
    (Problem(16, 224, 32, (56, 56), (3, 3), pad=same(1, 1)), "copy"),
    (Problem(32, 48, 16, (112, 112), (3, 3), pad=same(1, 1)), "bias_relu"),
    (Problem(4, 32, 24, (32, 48, 48), (3, 3, 3), pad=same(1, 1, 1)), "bias_relu"),
    (Problem(16, 256, 96, (28, 28), (3, 3), pad=same(1, 1)), "copy"),
)


@dataclass(frozen=True)
class Layer:
    """One job with its operands, and the exact result of its first image."""

    problem: Problem
    body: str
    image: Tensor
    weight: Tensor
    in0: Tensor
    exact: Tensor

    def eager(self) -> Tensor:
        return meaning(self.body, self.problem.torch(self.image, self.weight), self.in0)

    def error(self, result: Tensor) -> tuple[float, float]:
        """Of the first image: relative Frobenius error, and the largest one over the largest."""
        wrong = result[:1].double() - self.exact
        whole, most = wrong.norm() / self.exact.norm(), wrong.abs().max() / self.exact.abs().max()
        return float(whole.item()), float(most.item())


def layer(problem: Problem, body: str, dtype: torch.dtype) -> Layer:
    torch.manual_seed(0)
    image, weight = problem.image().to(dtype), problem.weight().to(dtype)
    in0 = convolutions.operand(Subject(body, 64, False, 1, 64, dtype=dtype), problem)
    exact = meaning(body, problem.torch(image[:1].double(), weight.double()), in0)
    return Layer(problem, body, image, weight, in0, exact)


def variants(
    problem: Problem, body: str, all_chunks: bool, dtype: torch.dtype, full: bool
) -> Iterator[Subject]:
    sizes = [(width, 1) for width in (FLOAT32_WIDTHS if full else WIDTHS)]
    few = problem.out_channels <= MOST_FEW and not problem.transposed
    vector = 4 if prod(problem.out_size) % 4 == 0 else 1
    for chunk in CHUNKS if all_chunks else (problem.chunk(),):
        for width, blocks in sizes if full else (*sizes, (64, 2)):
            for swapped in (False, True):
                together = problem.together
                parts = 2 if full else 1
                yield Subject(body, width, swapped, vector, chunk, blocks, together, dtype, parts)
        if full and few:
            yield Subject(body, FEW_CHANNELS, True, vector, chunk, dtype=dtype, parts=2)
        more = OWN_PHASES if problem.transposed else BETWEEN
        for width, swapped, blocks in sorted({(s.width, s.swapped, s.blocks) for s in more}):
            if not full:
                together = problem.together
                yield Subject(body, width, swapped, vector, chunk, blocks, together, dtype)


def launcher(library: Library, subject: Subject, job: Layer) -> tuple[Callable[[], None], Tensor]:
    """What runs one variant, and where its result goes."""
    out = torch.full(job.problem.result(), float("nan"), dtype=subject.dtype, device="cuda")
    need = job.problem.workspace_bytes(subject.chunk, subject.parts)
    space = torch.empty(need, dtype=torch.uint8, device="cuda")
    call = convolutions.Call(job.problem, job.image, job.weight, job.in0, out, space)

    def run() -> None:
        code = call.launch(library, subject)
        if code:
            raise RuntimeError(f"{subject.entry} returned CUDA error {code}")

    return run, out


def kernel_times(run: Callable[[], object], scratch: Tensor) -> str:
    """Microseconds of each kernel alone, the median of five launches."""
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        for _ in range(5):
            scratch.zero_()
            run()
        torch.cuda.synchronize()
    events = profiled.events() or ()
    times = {
        kernel: [event.device_time for event in events if kernel in event.name]
        for kernel in KERNELS
    }
    return ", ".join(f"{k} {statistics.median(v):.0f} us" for k, v in times.items() if v)


def pytorch(job: Layer, compiled: bool) -> dict[str, Callable[[], object]]:
    """PyTorch's ways, by name."""
    form = {2: torch.channels_last, 3: torch.channels_last_3d}.get(job.problem.rank)
    ways: dict[str, Callable[[], object]] = {
        "eager": job.eager,
        "convolution alone": lambda: job.problem.torch(job.image, job.weight),
    }
    if form is not None:
        image, weight = (t.contiguous(memory_format=form) for t in (job.image, job.weight))
        ways["convolution alone, channels last"] = lambda: job.problem.torch(image, weight)
    if compiled:
        torch._dynamo.reset()  # or it would compile for any shape from the second job on
        run = torch.compile(job.eager, dynamic=False)
        ways["torch.compile"] = run
    return ways


def floor_ms(job: Layer, scratch: Tensor) -> float:
    source = torch.empty(COPIED_BYTES, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    one = median_ms(lambda: target.copy_(source), scratch) / (2 * COPIED_BYTES)
    return one * job.image.itemsize * (job.image.numel() + prod(job.problem.result()))


def measure(library: Library, job: Layer, scratch: Tensor, options: argparse.Namespace) -> bool:
    """Print the rows of one job; whether no variant is less accurate than eager."""
    problem, times = job.problem, {}
    print(f"| {problem.numbers()}, {job.body} | floor | {floor_ms(job, scratch):.4f} | | | |")
    theirs = job.error(job.eager())
    ways = pytorch(job, not options.no_compile)
    for name, run in ways.items():
        run()
        time.sleep(PAUSE_S)
        times[name] = median_ms(run, scratch)
        print(line(name, times[name], problem, times[name], theirs), flush=True)
    ways.clear()
    baseline = times.get("torch.compile", times["eager"])
    rows, good = [], True
    some = variants(problem, job.body, options.all_chunks, job.image.dtype, options.full)
    least = 2e-7 if options.full else 3.2e-4
    for subject in some:
        run_ours, out = launcher(library, subject, job)
        time.sleep(PAUSE_S)
        rows.append((median_ms(run_ours, scratch), subject, job.error(out)))
        good &= rows[-1][2][0] <= max(theirs[0] * 1.02, least)
        del run_ours, out
        torch.cuda.empty_cache()
    best = min(rows, key=lambda row: row[0])
    for ms, subject, error in rows:
        name = name_of(subject)
        print(line(f"**{name}**" if ms == best[0] else name, ms, problem, baseline / ms, error))
    run_best, _ = launcher(library, best[1], job)
    print(f"| | {kernel_times(run_best, scratch)} | | | | |", flush=True)
    return good


def name_of(subject: Subject) -> str:
    side = "channels" if subject.swapped else "pixels"
    blocks = ""
    if subject.blocks > 1:
        blocks = ", two blocks" if subject.width <= 64 else ", groups own tiles"
    return f"{subject.width} {side} wide, chunk {subject.chunk}{blocks}"


def line(name: str, ms: float, problem: Problem, ratio: float, error: tuple[float, float]) -> str:
    rate = problem.flops / ms / 1e9
    return f"| | {name} | {ms:.4f} | {rate:.0f} | {ratio:.2f} | {error[0]:.2e}, {error[1]:.2e} |"


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--dtype", choices=tuple(TYPES), default="float32")
    options.add_argument("--arch", choices=tuple(PARTS), default="sm_90a", help="whose kernels")
    options.add_argument("--full", action="store_true", help="float32 without TF32")
    options.add_argument("--only", type=int, nargs="+", metavar="NUMBER", help="jobs, from 1")
    options.add_argument("--all-chunks", action="store_true", help="also those that waste channels")
    options.add_argument("--no-compile", action="store_true", help="eager is the baseline")
    given = options.parse_args()
    capability = torch.cuda.get_device_capability() if torch.cuda.is_available() else (0, 0)
    if capability != (9, 0) and not (given.arch == "sm_80" and capability >= (8, 0)):
        print(f"bench/convolution.py needs a GPU that runs {given.arch}: run it where one is.")
        return 3
    scratch = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    jobs = tuple(JOBS[number - 1] for number in given.only or range(1, 1 + len(JOBS)))
    dtype, chunks = TYPES[given.dtype], given.all_chunks
    full = given.full
    torch.backends.cudnn.allow_tf32 = not full
    every = [s for problem, body in jobs for s in variants(problem, body, chunks, dtype, full)]
    good = True
    with tempfile.TemporaryDirectory() as folder:
        library = convolutions.library(tuple(dict.fromkeys(every)), Path(folder), arch=given.arch)
        versions = f"torch {torch.__version__}, {given.arch}, {given.dtype}"
        print(f"{torch.cuda.get_device_name()}, {versions}\n")
        print("| convolution_shape | variant | ms | TFLOP/s | ratio | error |")
        print("|---|---|---:|---:|---:|---:|")
        for problem, body in jobs:
            good &= measure(library, layer(problem, body, dtype), scratch, given)
            torch.cuda.empty_cache()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
