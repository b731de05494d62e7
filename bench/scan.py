"""Running sums and products along rows of 2^26 floats -> a Markdown table beside eager and a copy.

python bench/scan.py [--device cuda|cpu]

Medians of 12 calls in a row, without a flush between them; on a CPU 2^24 floats. Errors are the
largest of the first 64 rows against float64, ours and eager's.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

import fusewright

CALLS, ELEMENTS = 12, {"cuda": 1 << 26, "cpu": 1 << 24}
COLUMNS = (32, 128, 1024, 4096, 8192, 16384, 65536, 1 << 20)


class Plain(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.cumsum(1)


class Around(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x.relu() * 0.5).flip(1).cumsum(1).flip(1) - x


class Product(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (1.0 - x.abs() * 1e-4).cumprod(1)


def median_us(call: Callable[[], object], device: str) -> float:
    times = []
    for _ in range(CALLS + 3):
        if device == "cuda":
            torch.cuda.synchronize()
        begin = time.perf_counter()
        call()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append((time.perf_counter() - begin) * 1e6)
    return statistics.median(times[3:])


@torch.no_grad()
def line(kind: type[nn.Module], columns: int, device: str) -> str:
    x = torch.randn(ELEMENTS[device] // columns, columns, device=device)
    out, model = torch.empty_like(x), kind()
    ours = fusewright.optimize(model, x[:64].cpu(), options={"target": device}).to(device)
    exact = model(x[:64].double())
    errors = [float((m(x[:64]) - exact).abs().max()) for m in (ours, model)]
    calls = (lambda: ours(x), lambda: model(x), lambda: out.copy_(x))
    times = [median_us(call, device) for call in calls]
    cells = [f"{t:.1f}" for t in times] + [f"{times[2] / times[0]:.2f}"]
    return (
        f"| {kind.__name__}, {columns} | {' | '.join(cells)} | {errors[0]:.1e}, {errors[1]:.1e} |"
    )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--device", choices=tuple(ELEMENTS), default="cuda")
    device = options.parse_args().device
    print("| model, columns | ours us | eager us | copy us | of copy | error, eager's |")
    print("|---|---|---|---|---|---|")
    for columns in COLUMNS:
        for kind in (Plain, Around, Product) if columns in (1024, 8192) else (Plain,):
            print(line(kind, columns, device), flush=True)


if __name__ == "__main__":
    main()
