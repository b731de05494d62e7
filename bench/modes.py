"""Times of problem files in train mode and in eval mode -> a Markdown table, ours beside others.

python bench/modes.py [zoo/network_residual_stack.py ...] [--target cuda|cpu] [--large] [--overhead]
    [--row N] [--warm]

One file is written for both modes. A round calls each side once, in random order, on inputs of the
round; a call is timed with a device that waits for nothing before it. Numbers are medians of 51
rounds, and quartiles of the ratios within a round. --large: eleven networks at sizes at which most
take a GPU 0.2 to 5 ms, with up to 16 images or rows. --overhead: torch.compile's mode that reduces
it is a side, too, and behind each time stands that of a GPU which the host is ahead of. --row: each
side is called so often in a row, and the time is divided. --warm: only compile, so that several
processes may do it beside each other; PyTorch and fusewright keep what they compiled.
"""

from __future__ import annotations

import argparse
import importlib.util
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fusewright.common.problem_file import Problem, load_problem
from fusewright.compiler.options import MODES
from fusewright.compiler.pipeline import emit_only

ROUNDS, BEFORE = 51, 4
SIDES = ("ours", "eager", "torch.compile", "reduce-overhead")
HEAD_START = 10_000_000  # cycles: about 5 ms
ZOO = Path(__file__).parents[1] / "zoo"
NAMES = (
    *("norm_batch_train", "linear_batchnorm_swish", "network_residual_stack"),
    *("network_batchnorm_stack", "network_unet", "network_dense_block"),
    *("network_inverted_bottleneck", "network_encoder_stack", "network_transformer_block"),
    "network_point_cloud",
)
LARGE: Mapping[str, Mapping[str, int]] = {
    "residual_stack": {"batch_size": 8, "size": 64, "width": 64},
    "unet": {"batch_size": 4, "side": 160, "width": 32},
    "dense_block": {"batch_size": 16, "channels": 64, "growth": 32, "side": 56, "depth": 6},
    "inverted_bottleneck": {"batch_size": 16, "channels": 64, "side": 56},
    "encoder_stack": {"batch_size": 8, "length": 128, "width": 256},
    "transformer_block": {"batch_size": 16, "length": 256, "width": 512, "heads": 8},
    "convnext_block": {"batch_size": 16, "channels": 128, "side": 56},
    "mixer_block": {"batch_size": 16, "length": 196, "width": 512},
    "vision_patches": {"batch_size": 16, "side": 224, "patch": 16, "width": 384},
    "super_resolution": {"batch_size": 2, "side": 128, "width": 64},
    "conv_attention": {"batch_size": 16, "side": 128, "width": 128, "heads": 8},
}
Call = Callable[[], object]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    known = [ZOO / f"{name}.py" for name in NAMES]
    parser.add_argument("problems", nargs="*", type=Path, default=known)
    parser.add_argument("--target", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--overhead", action="store_true")
    parser.add_argument("--row", type=int, default=1, metavar="N")
    parser.add_argument("--warm", action="store_true")
    given = parser.parse_args()
    names = SIDES if given.overhead else SIDES[:3]
    others = [f"{name}/ours" for name in names[1:]]
    columns = ["problem", "mode", *(f"{name} ms" for name in names), *others]
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    problems = [load_problem(path) for path in given.problems]
    if given.large:
        stems = [path.stem.removeprefix("network_") for path in given.problems]
        problems = [at_size(name) for name in (LARGE if given.problems == known else stems)]
    for problem in problems:
        for mode in MODES[1:]:
            row = _row(problem, mode, given.target, names, calls=given.row, warm=given.warm)
            print(row, flush=True)


def at_size(name: str) -> Problem:
    """A network of the zoo at its large size."""
    sizes = {word: str(size) for word, size in LARGE[name].items()}
    return load_problem(ZOO / f"network_{name}.py", sizes)


@torch.no_grad()
def _row(
    problem: Problem, mode: str, target: str, names: Sequence[str], *, calls: int, warm: bool
) -> str:
    path, device = problem.path, "cuda" if target == "cuda" else "cpu"
    torch.compiler.reset()
    sides = _sides(problem, mode, target, device, names)
    for k in range(BEFORE):
        inputs, seed = drawn(problem, device), k
        ours, eager, *_ = (_seeded(side, inputs, seed) for side in sides.values())
        torch.testing.assert_close(ours, eager, rtol=1e-2, atol=1e-3)
    status = type(sides["ours"]).fusewright_status()  # type: ignore[attr-defined]
    if not status["kernels"]:
        return f"| {path.stem} | {mode} | as written |"
    assert status["kernels"] == BEFORE, status
    if warm:
        return f"| {path.stem} | {mode} | warm |"
    rounds = [_round(sides, drawn(problem, device), device, calls) for _ in range(ROUNDS)]
    cells = [f"{statistics.median(r[name] for r in rounds) * 1e3:.4f}" for name in sides]
    if len(names) == len(SIDES) and device == "cuda":
        ahead = [_round(sides, drawn(problem, device), device, ahead=True) for _ in range(ROUNDS)]
        alone = (statistics.median(r[name] for r in ahead) * 1e3 for name in sides)
        cells = [f"{cell} ({gpu:.4f})" for cell, gpu in zip(cells, alone, strict=True)]
    for other in names[1:]:
        low, middle, high = statistics.quantiles((r[other] / r["ours"] for r in rounds), n=4)
        cells.append(f"{middle:.2f} ({low:.2f} to {high:.2f})")
    return f"| {path.stem} | {mode} | {' | '.join(cells)} |"


def _seeded(model: nn.Module, inputs: list[Any], seed: int) -> object:
    torch.manual_seed(seed)  # of what drops out
    return model(*inputs)


def _sides(
    problem: Problem, mode: str, target: str, device: str, names: Sequence[str]
) -> dict[str, nn.Module]:
    """Models with the same parameters, in this mode."""
    sides: dict[str, nn.Module] = {
        name: problem.make_model() if name != "ours" else written(problem, target) for name in names
    }
    for model in sides.values():
        model.to(device).train(mode == "train").load_state_dict(sides["eager"].state_dict())
    sides["torch.compile"].compile()
    if "reduce-overhead" in sides:
        sides["reduce-overhead"].compile(mode="reduce-overhead")
    return sides


def written(problem: Problem, target: str, *, gradients: bool = False) -> Any:
    """ModelNew of the file that is written for a problem."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "written.py"
        sizes = problem.overrides
        emit_only(problem.path, out=path, target=target, overrides=sizes, gradients=gradients)
        spec = importlib.util.spec_from_file_location("written", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return module.ModelNew(*problem.make_init_inputs())


def drawn(problem: Problem, device: str) -> list[Any]:
    """Inputs of a call."""
    return [x.to(device) if isinstance(x, torch.Tensor) else x for x in problem.make_inputs()]


def _round(
    sides: Mapping[str, nn.Module],
    inputs: list[Any],
    device: str,
    calls: int = 1,
    *,
    ahead: bool = False,
) -> dict[str, float]:
    """Seconds of a call of each side, which is called so often. ahead: of the GPU alone."""
    order = random.sample([*sides], len(sides))
    rows = {name: partial(called, sides[name], inputs, calls) for name in order}
    return {name: timed(rows[name], device, ahead=ahead) / calls for name in order}


def called(model: nn.Module, inputs: list[Any], calls: int) -> None:
    for _ in range(calls):
        model(*inputs)


def timed(call: Call, device: str, *, ahead: bool = False) -> float:
    """Seconds of one call. ahead: with a GPU that is busy until the host has launched all of it."""
    if device == "cpu":
        begin = time.perf_counter()
        call()
        return time.perf_counter() - begin
    first: Any
    last: Any
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()
    if ahead:
        torch.cuda._sleep(HEAD_START)  # type: ignore[no-untyped-call]
    first.record()
    call()
    last.record()
    last.synchronize()
    return float(first.elapsed_time(last)) * 1e-3


if __name__ == "__main__":
    main()
