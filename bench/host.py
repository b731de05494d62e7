"""Host time of `forward` of models with one kernel -> a Markdown table beside eager, one operator.

python bench/host.py [--device cuda|cpu] [--networks [zoo/network_unet.py ...]]

Inputs of 1 KB to 1 MB. A round times 100 calls of each side in a row, in random order of sides, and
does not wait for a GPU inside; numbers are medians and quartiles of 51 rounds. The last column is
ours beside a module that only calls torch.relu on the first input. --networks: problem files in
train mode in place of these models, with as many calls as a GPU takes without waiting.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from modes import BEFORE, drawn, written
from torch import Tensor, nn

import fusewright
from fusewright.common.problem_file import load_problem

CALLS, ROUNDS, WIDTH = 100, 51, 64
IN_FLIGHT = 10  # calls of a network; a GPU takes some thousand launches before its host waits
NETWORKS = [
    Path(__file__).parents[1] / f"zoo/network_{name}.py"
    for name in ("transformer_block", "batchnorm_stack", "encoder_stack", "residual_stack")
]
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


def spent_us(
    sides: Mapping[str, tuple[nn.Module, list[Tensor]]], calls: int = CALLS
) -> dict[str, list[float]]:
    """Microseconds of a call of every side, one number for each round."""
    spent: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(ROUNDS):
        for name in random.sample(list(sides), len(sides)):
            module, inputs = sides[name]
            if inputs[0].is_cuda:
                torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(calls):
                module(*inputs)
            spent[name].append((time.perf_counter() - begin) / calls * 1e6)
    return spent


@torch.no_grad()
def line(kind: Any, count: int, rows: int, device: str) -> str:
    given = [torch.randn(rows, WIDTH) for _ in range(count)]
    model = kind()
    ours = fusewright.optimize(model, *given, options={"target": device}).to(device)
    model, inputs = model.to(device), [x.to(device) for x in given]
    torch.testing.assert_close(ours(*inputs), model(*inputs))
    return _line(kind.__name__, ours, model, inputs, CALLS)


@torch.no_grad()
def network_line(path: Path, device: str) -> str:
    problem = load_problem(path)
    ours, model = written(problem, device).to(device), problem.make_model().to(device)
    ours.load_state_dict(model.state_dict())
    inputs = drawn(problem, device)
    for _ in range(BEFORE):
        torch.testing.assert_close(ours(*inputs), model(*inputs), rtol=1e-2, atol=1e-3)
    assert type(ours).fusewright_status()["kernels"] == BEFORE
    return _line(path.stem, ours, model, inputs, IN_FLIGHT)


def _line(name: str, ours: nn.Module, model: nn.Module, inputs: list[Tensor], calls: int) -> str:
    sides = {"ours": (ours, inputs), "eager": (model, inputs), "one": (Operator(), inputs[:1])}
    times = spent_us(sides, calls)
    spent = {side: statistics.quantiles(every, n=4) for side, every in times.items()}
    cells = [f"{q[1]:.2f} ({q[0]:.2f}-{q[2]:.2f})" for q in spent.values()]
    ratios = [f"{spent['ours'][1] / spent[side][1]:.2f}" for side in ("eager", "one")]
    given = sum(x.nbytes for x in inputs if isinstance(x, Tensor))
    return f"| {name} | {given:,} | {' | '.join([*cells, *ratios])} |"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    options.add_argument("--networks", nargs="*", type=Path)
    given = options.parse_args()
    device = given.device
    print("| model | bytes | ours us | eager us | one operator us | of eager | of one operator |")
    print("|---|---|---|---|---|---|---|")
    for path in () if given.networks is None else given.networks or NETWORKS:
        print(network_line(path, device), flush=True)
    for rows in ROWS if given.networks is None else ():
        for kind, count in KINDS:
            print(line(kind, count, rows, device), flush=True)


if __name__ == "__main__":
    main()
