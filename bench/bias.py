"""PyTorch's linear layer in float32, with a bias and without -> a Markdown table.

python bench/bias.py [--device cuda|cpu]

What reads the result can add the bias, so the difference is what leaving it out saves. A round
calls each side once, in random order; a GPU is busy until the host has launched all of it. Numbers
are medians of 201 rounds on a GPU and of 51 on a CPU, and quartiles of the ratios within a round.
"""

from __future__ import annotations

import argparse
import random
import statistics
from functools import partial

import torch
from modes import timed
from torch.nn.functional import linear

ROUNDS = {"cuda": 201, "cpu": 51}
# Rows, inner dimension, columns.
SIZES = (
    *((1, 1024, 1024), (16, 1024, 1024), (64, 48, 48), (64, 768, 768), (64, 768, 3072)),
    *((64, 3072, 768), (128, 96, 96), (128, 96, 384), (128, 384, 96), (128, 768, 768)),
    *((256, 96, 96), (256, 256, 256), (256, 512, 512), (512, 96, 96), (512, 256, 256)),
    *((512, 256, 1024), (512, 768, 3072), (1024, 64, 64), (1024, 256, 256), (4096, 64, 64)),
)


@torch.no_grad()
def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    default = "cuda" if torch.cuda.is_available() else "cpu"
    options.add_argument("--device", choices=[*ROUNDS], default=default)
    device = options.parse_args().device
    print("| rows, inner, columns | MFLOP | with ms | without ms | with/without |")
    print("|---|---|---|---|---|")
    for sizes in SIZES:
        print(_row(*sizes, device), flush=True)


def _row(rows: int, inner: int, columns: int, device: str) -> str:
    x, weight, bias = (
        torch.randn(size, device=device) for size in ((rows, inner), (columns, inner), (columns,))
    )
    sides = {"with": partial(linear, x, weight, bias), "without": partial(linear, x, weight)}
    spent: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(ROUNDS[device] + 3):
        for name in random.sample([*sides], len(sides)):
            spent[name].append(timed(sides[name], device, ahead=True))
    both = list(zip(spent["with"][3:], spent["without"][3:], strict=True))
    cells = [f"{statistics.median(times) * 1e3:.4f}" for times in zip(*both, strict=True)]
    low, middle, high = statistics.quantiles((one / other for one, other in both), n=4)
    flops = f"{2 * rows * inner * columns / 1e6:.1f}"
    ratio = f"{middle:.2f} ({low:.2f} to {high:.2f})"
    return f"| {rows}, {inner}, {columns} | {flops} | {' | '.join(cells)} | {ratio} |"


if __name__ == "__main__":
    main()
