"""Host time of `forward` of models with one kernel -> a Markdown table beside eager, one operator.

python bench/host.py [--device cuda|cpu]

Inputs of 1 KB to 1 MB. A round times 100 calls of each side in a row, in random order of sides, and
does not wait for a GPU inside; numbers are medians and quartiles of 51 rounds. The last column is
ours beside a module that only calls torch.relu on the first input.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

import fusewright

CALLS, ROUNDS, WIDTH = 100, 51, 64
ROWS = (4, 64, 1024, 4096)  # of 256 bytes


class Operator(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x)


class Chain(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x) * 2.0 + 1.0


class Sum(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.relu(x + y)


class Bias(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.bias)


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.act = nn.LayerNorm(WIDTH), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.norm(x))  # type: ignore[no-any-return]


KINDS = ((Operator, 1), (Chain, 1), (Sum, 2), (Bias, 1), (Norm, 1))


def spent_us(sides: Mapping[str, tuple[nn.Module, list[Tensor]]]) -> dict[str, list[float]]:
    """Microseconds of a call of every side, one number for each round."""
    spent: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(ROUNDS):
        for name in random.sample(list(sides), len(sides)):
            module, inputs = sides[name]
            if inputs[0].is_cuda:
                torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(CALLS):
                module(*inputs)
            spent[name].append((time.perf_counter() - begin) / CALLS * 1e6)
    return spent


@torch.no_grad()
def line(kind: Any, count: int, rows: int, device: str) -> str:
    given = [torch.randn(rows, WIDTH) for _ in range(count)]
    model = kind()
    ours = fusewright.optimize(model, *given, options={"target": device}).to(device)
    model, inputs = model.to(device), [x.to(device) for x in given]
    torch.testing.assert_close(ours(*inputs), model(*inputs))
    sides = {"ours": (ours, inputs), "eager": (model, inputs), "one": (Operator(), inputs[:1])}
    spent = {name: statistics.quantiles(times, n=4) for name, times in spent_us(sides).items()}
    cells = [f"{q[1]:.2f} ({q[0]:.2f}-{q[2]:.2f})" for q in spent.values()]
    ratios = [f"{spent['ours'][1] / spent[name][1]:.2f}" for name in ("eager", "one")]
    return f"| {kind.__name__} | {rows * WIDTH * 4:,} | {' | '.join([*cells, *ratios])} |"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    device = options.parse_args().device
    print("| model | bytes | ours us | eager us | one operator us | of eager | of one operator |")
    print("|---|---|---|---|---|---|---|")
    for rows in ROWS:
        for kind, count in KINDS:
            print(line(kind, count, rows, device), flush=True)


if __name__ == "__main__":
    main()
