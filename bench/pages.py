"""Models with large float32 products: ours, ours without huge pages, eager -> a Markdown table.

    python bench/pages.py [--rounds 9]

On the CPU, with the threads that PyTorch takes. One interleaved run, in random order; ratios are
medians over rounds of (other / ours) with 95 % intervals.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import time
from collections.abc import Callable
from unittest import mock

import torch
import torch.nn.functional as F
from compare import Side, against
from torch import Tensor, nn

import fusewright

Shape = tuple[int, ...]


class Layer(nn.Module):
    """A Linear and what follows it."""

    def __init__(self, depth: int, columns: int, tail: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.linear, self.tail = nn.Linear(depth, columns), tail

    def forward(self, x: Tensor) -> Tensor:
        return self.tail(self.linear(x))


class Attention(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.softmax(q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5, -1) @ v


def layer(rows: Shape, depth: int, columns: int, tail: Callable[[Tensor], Tensor]) -> Case:
    return Layer(depth, columns, tail), [(*rows, depth)]


Case = tuple[nn.Module, list[Shape]]
CASES: dict[str, Callable[[], Case]] = {
    "attention 8x8x512x64": lambda: (Attention(), [(8, 8, 512, 64)] * 3),
    "attention 2x12x1024x64": lambda: (Attention(), [(2, 12, 1024, 64)] * 3),
    "attention 2x1x4096x128": lambda: (Attention(), [(2, 1, 4096, 128)] * 3),
    "8192x1024->1024, GELU": lambda: layer((8192,), 1024, 1024, F.gelu),
    "4096x256->4096, GELU": lambda: layer((4096,), 256, 4096, F.gelu),
    "16384x128->1024": lambda: layer((16384,), 128, 1024, lambda x: x),
    "16384x64->1024, mish, maximum": lambda: layer((16384,), 64, 1024, lambda x: F.mish(x).amax(1)),
    "4096x512->8192, logsumexp": lambda: layer((4096,), 512, 8192, lambda x: x.logsumexp(1)),
    "32x512x256->1024, GELU": lambda: layer((32, 512), 256, 1024, F.gelu),
}


def sides(module: nn.Module, inputs: list[Tensor]) -> list[Side]:
    ours = fusewright.optimize(module, *inputs, options={"target": "cpu"})
    with mock.patch("fusewright.compiler.passes.pages", lambda graph, _: graph):
        small = fusewright.optimize(module, *inputs, options={"target": "cpu"})
    return [Side("ours", ours, []), Side("small", small, []), Side("eager", module, [])]


@torch.no_grad()
def line(name: str, make: Callable[[], Case], rounds: int) -> str:
    module, shapes = make()
    every = sides(module, [torch.randn(s) for s in shapes])
    for turn in range(rounds + 1):
        inputs = [torch.randn(s) for s in shapes]
        for side in random.sample(every, len(every)):
            begin = time.perf_counter()
            side.call(*inputs)
            if turn:
                side.seconds.append(time.perf_counter() - begin)
    ours, *others = every
    low, *_, high = statistics.quantiles(ours.seconds, n=10)
    cells = [
        name,
        f"{statistics.median(ours.seconds) * 1e3:.1f} ({low * 1e3:.1f}-{high * 1e3:.1f})",
    ]
    ratios = [against(other.seconds, ours.seconds)[0] for other in others]
    return f"| {' | '.join([*cells, *ratios])} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    print(f"torch {torch.__version__}, load {os.getloadavg()[0]:.1f}, {rounds} rounds\n")
    print("| model | ours ms | small pages | eager |\n|---|---|---|---|")
    for name, make in CASES.items():
        print(line(name, make, rounds), flush=True)


if __name__ == "__main__":
    main()
