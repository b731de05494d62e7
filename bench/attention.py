"""Attention kernels -> a Markdown table of times and errors beside PyTorch's own.

python bench/attention.py [--only 64x2048x64]

Needs an NVIDIA GPU, nvcc and torch. Eager is two products and a softmax; `fused` is PyTorch's
scaled_dot_product_attention in float32. Times include packing. 256 MB are overwritten before each
launch, so nothing is in L2; the three take turns.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from product import FLUSH_BYTES, LAUNCHES, cold_ms  # noqa: E402

from tests.support import attention_subjects as subjects  # noqa: E402
from tests.support.attention_subjects import Call, Subject  # noqa: E402
from tests.support.gemm_subjects import Library  # noqa: E402

# batches x length x head
SHAPES = ("512x512x64", "64x2048x64", "64x2048x128", "16x4096x128", "1024x128x64")


def medians_ms(runs: Mapping[str, Callable[[], object]], scratch: Tensor) -> dict[str, float]:
    """The median of LAUNCHES runs of each, in turns, on a cold L2."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(LAUNCHES + 3):
        for name, run in runs.items():
            elapsed = cold_ms(run, scratch)
            if turn >= 3:
                times[name].append(elapsed)
    return {name: statistics.median(found) for name, found in times.items()}


def measure(library: Library, shape: str, scores: str, scratch: Tensor) -> None:
    """Print the rows of one shape and one function of scores."""
    batches, length, head = (int(size) for size in shape.split("x"))
    torch.manual_seed(0)
    q, k, v = (torch.randn(batches, length, head, device="cuda") for _ in range(3))
    future = torch.ones(length, length, dtype=torch.bool, device="cuda").triu(1)
    call = Call(q, k, v, head**-0.5, future if scores == "masked" else None)
    subject = Subject(scores, "copy", 64 if head <= 64 else 128, 4)
    out = torch.empty(batches, length, head, device="cuda")
    space = torch.empty(call.workspace_bytes, dtype=torch.uint8, device="cuda")

    def ours() -> Tensor:
        if code := call.launch(library, subject, out, space):
            raise RuntimeError(f"{subject.entry} returned CUDA error {code}")
        return out

    def eager() -> Tensor:
        return subjects.meaning(call, subject, torch.float32)

    def fused() -> Tensor:
        allowed = None if call.mask is None else ~call.mask
        one, two, three = (t.unsqueeze(0) for t in (q, k, v))
        return scaled_dot_product_attention(one, two, three, attn_mask=allowed).squeeze(0)

    runs = {"eager": eager, "fused": fused, "ours": ours}
    part = Call(q[:1], k[:1], v[:1], call.by, call.mask)
    exact = subjects.meaning(part, subject, torch.float64)
    times = medians_ms(runs, scratch)
    for name, run in runs.items():
        error = ((run()[:1].double() - exact).norm() / exact.norm()).item()
        speed = 4.0 * batches * length * length * head / times[name] / 1e9
        ratio = times["eager"] / times[name]
        print(
            f"| {shape} | {scores} | {name} | {times[name]:.4f} | {speed:.0f} | {ratio:.2f} "
            f"| {error:.2e} |",
            flush=True,
        )


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--only", metavar="BxLxD", help="one shape, any")
    given = options.parse_args()
    if not torch.cuda.is_available():
        print("bench/attention.py finds no CUDA GPU to time on: run it where there is one.")
        return 3
    scratch = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    some = [Subject(s, "copy", w, 4) for s in ("scaled", "masked") for w in subjects.WIDTHS]
    with tempfile.TemporaryDirectory() as folder:
        library = subjects.library(some, Path(folder))
        print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
        print("\n| batches x length x head | scores | variant | ms | TFLOP/s | of eager | error |")
        print("|---|---|---|---:|---:|---:|---:|")
        for shape in [given.only] if given.only else SHAPES:
            for scores in ("scaled", "masked"):
                measure(library, shape, scores, scratch)
    return 0


if __name__ == "__main__":
    sys.exit(main())
