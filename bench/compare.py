"""ours, eager and torch.compile in one interleaved run -> a Markdown table with intervals.

    python bench/compare.py [--device cpu|cuda] [--rounds N] [--table | --networks] [--processor]
                            [--jobs N] [--no-autotune] [NAME ...]

Every round draws fresh inputs and calls every side once, in random order; on CUDA the L2 cache is
flushed before each call, the GPU is kept busy until the host has launched everything, and the copy
bandwidth is measured in the same rounds. A ratio is the median over rounds of (other side / ours),
with its 95 % interval; above 1, ours is faster; "best" is the side with the least median. --table
runs single operators, at 64 MB on a CPU, 256 MB on a GPU, instead of whole models, --networks whole
networks, without max-autotune, which --no-autotune leaves out elsewhere. --processor
counts the processor seconds of all threads instead of time, for a CPU that others use, too; set
OMP_WAIT_POLICY=PASSIVE, so that threads sleep where they wait. --jobs builds so many models at a
time, each in a process of its own, before the first is measured: the compilers remember them.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import platform
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from models import Entry, Inputs, entries, table
from networks import networks
from torch import Tensor, nn

import fusewright
from fusewright.judge.timing.statistics import ratio

Call = Callable[..., object]
Clock = Callable[[], float]  # seconds
HEAD_START = 5_000_000  # clock cycles, about 3 ms: as long as PyTorch takes to launch a network
MODES = {"cpu": ("default",), "cuda": ("default", "max-autotune-no-cudagraphs")}


@dataclass
class Side:
    """One implementation and its times, one per round."""

    name: str
    call: Call
    seconds: list[float]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--networks", action="store_true")
    parser.add_argument("--no-autotune", action="store_true")
    parser.add_argument("--processor", action="store_true")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--build", action="store_true", help="build, and measure nothing")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    size = "gpu" if options.device == "cuda" else "cpu"
    every = networks(size) if options.networks else (table if options.table else entries)(size)
    if options.networks or options.no_autotune:
        MODES[options.device] = MODES[options.device][:1]
    wanted = {n: e for n, e in every.items() if not options.names or n in options.names}
    if options.build:
        _build(wanted.values(), options.device)
        return
    if options.jobs > 1:
        _build_aside(wanted, options)
    _compare(wanted, options)


def _compare(wanted: Mapping[str, Callable[[], Entry]], options: argparse.Namespace) -> None:
    load = os.getloadavg()[0]
    print(f"{_machine(options.device)}, load {load:.1f}, torch {torch.__version__}, ", end="")
    print(f"{time.strftime('%F %R')}, {options.rounds} rounds\n")
    others = " | ".join(f"vs {name}" for name in ("eager", "compile", "max-autotune", "best"))
    print(f"| model | ours ms (10–90 %) | GB/s | of copy | {others} | load |")
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    clock, best = time.process_time if options.processor else time.perf_counter, []
    for name, make in wanted.items():
        module, inputs = make()
        row, least = _measure(name, module, inputs, options.device, options.rounds, clock)
        print(f"{row} {os.getloadavg()[0]:.1f} |", flush=True)
        best.append(least)
    print(
        f"\nGeometric mean against the best of the others: {statistics.geometric_mean(best):.2f}×"
    )


def _build(wanted: Iterable[Callable[[], Entry]], device: str) -> None:
    """Call every side of every model once."""
    for make in wanted:
        _, first, sides = _built(*make(), device)
        with torch.no_grad():
            for side in sides:
                side.call(*first)


def _built(
    module: nn.Module, make_inputs: Inputs, device: str
) -> tuple[nn.Module, list[Tensor], list[Side]]:
    """The model and inputs on the device, and the sides to be measured."""
    module = module.to(device)
    first = [x.to(device) for x in make_inputs()]
    with torch.no_grad():
        return module, first, _sides(module, [x.cpu() for x in first], device)


def _build_aside(names: Iterable[str], options: argparse.Namespace) -> None:
    """The same in processes; who fails here fails again, and says why, when it is measured."""
    flags = ["--device", options.device, "--build", *["--table"] * options.table]
    flags += ["--networks"] * options.networks + ["--no-autotune"] * options.no_autotune

    def build(name: str) -> None:
        command = [sys.executable, __file__, *flags, name]
        subprocess.run(command, capture_output=True, check=False)

    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(build, names))


def _machine(device: str) -> str:
    return torch.cuda.get_device_name() if device == "cuda" else f"{platform.processor()} CPU"


def _measure(
    name: str,
    module: nn.Module,
    make_inputs: Inputs,
    device: str,
    rounds: int,
    clock: Clock,
) -> tuple[str, float]:
    torch._dynamo.reset()
    module, first, sides = _built(module, make_inputs, device)
    with torch.no_grad():
        outputs = [side.call(*first) for side in sides for _ in range(3)]
        del outputs
        copy = Side("copy", _copy_of(first[0], device), [])
        everything = [*sides, copy]
        for _ in range(rounds):
            fresh = [torch.randn_like(x) if x.is_floating_point() else x.clone() for x in first]
            random.shuffle(everything)
            for side in everything:
                side.seconds.append(_time(side.call, fresh, device, clock))
    return _row(name, sides, copy, first, module)


def _sides(module: nn.Module, cpu_inputs: Sequence[Tensor], device: str) -> list[Side]:
    import copy

    ours = fusewright.optimize(
        copy.deepcopy(module).cpu(), *cpu_inputs, options={"target": device}
    ).to(device)
    sides = [Side("ours", ours, []), Side("eager", copy.deepcopy(module), [])]
    for mode in MODES[device]:
        compiled = torch.compile(copy.deepcopy(module), mode=mode)
        sides.append(Side(mode, compiled, []))
    return sides


def drawn(what: str | None, count: int, least: int | None, unit: str) -> argparse.Namespace:
    """The options of a script that draws random models."""
    options = argparse.ArgumentParser(description=what)
    options.add_argument("--count", type=int, default=count)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--first", type=int, default=0, metavar="NUMBER")
    options.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) - 2))
    options.add_argument("--least", type=int, default=least, metavar=unit)
    return options.parse_args()


def workers(jobs: int) -> ProcessPoolExecutor:
    """Processes that build at the same time, and whose `medians` wait for each other."""
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(
        jobs, mp_context=context, initializer=_take_turns, initargs=(context.Lock(),)
    )


_TURN: AbstractContextManager[object] = nullcontext()


def _take_turns(lock: AbstractContextManager[object]) -> None:
    global _TURN
    _TURN = lock
    torch.set_num_threads(1)


@torch.no_grad()
def ready(module: nn.Module, x: Tensor, *, compiled: bool) -> list[Side]:
    """ours, eager and, if asked for, torch.compile on CUDA; each called once, which builds it."""
    ours = fusewright.optimize(module, x, options={"target": "cuda"}).cuda()
    module = module.cuda()
    sides = [Side("ours", ours, []), Side("eager", module, [])]
    sides += [Side("compile", torch.compile(module, dynamic=False), [])] * compiled
    for side in sides:
        side.call(x.cuda())
    return sides


@torch.no_grad()
def medians(sides: list[Side], x: Tensor, rounds: int) -> dict[str, float]:
    """What each takes in milliseconds, from interleaved rounds with fresh inputs like x."""
    with _TURN:
        for _ in range(rounds):
            fresh = torch.randn_like(x, device="cuda")
            random.shuffle(sides)
            for side in sides:
                side.seconds.append(_time(side.call, [fresh], "cuda"))
    return {side.name: float(torch.tensor(side.seconds).median()) * 1e3 for side in sides}


def _copy_of(x: Tensor, device: str) -> Call:
    """A copy of 256 MB (CUDA) or of the input (CPU) into fresh memory."""
    source = torch.randn(64 << 20, device=device) if device == "cuda" else x
    return lambda *_: source.clone()


_FLUSH: list[Tensor] = []


def _time(
    call: Call, inputs: Sequence[Tensor], device: str, clock: Clock = time.perf_counter
) -> float:
    if device == "cpu":
        start = clock()
        result = call(*inputs)
        seconds = clock() - start
        del result
        return seconds
    if not _FLUSH:
        _FLUSH.append(torch.empty(256 << 20, dtype=torch.uint8, device=device))
    _FLUSH[0].zero_()
    # The host is ahead of the GPU, as in a model of many layers.
    torch.cuda._sleep(HEAD_START)  # type: ignore[no-untyped-call]
    event: Any = torch.cuda.Event  # PyTorch says no types of it
    start_event, end_event = (event(enable_timing=True) for _ in range(2))
    start_event.record()
    call(*inputs)
    end_event.record()
    torch.cuda.synchronize()
    return float(start_event.elapsed_time(end_event)) / 1e3


def _row(
    name: str, sides: list[Side], copy: Side, inputs: Sequence[Tensor], module: nn.Module
) -> tuple[str, float]:
    by_name = {s.name: s for s in sides}
    ours = by_name["ours"].seconds
    low, middle, high = (torch.tensor(ours).quantile(q).item() * 1e3 for q in (0.1, 0.5, 0.9))
    with torch.no_grad():
        out = by_name["eager"].call(*inputs)
    assert isinstance(out, Tensor)
    moved = sum(x.nbytes for x in [*inputs, out, *module.parameters()])
    copied = 2 * (256e6 * 1.048576 if out.is_cuda else inputs[0].nbytes)
    copy_rate = copied / torch.tensor(copy.seconds).median().item()
    rate = moved / (middle / 1e3)
    cells = [f"{middle:.3f} ({low:.3f}–{high:.3f})", f"{rate / 1e9:.0f}", f"{rate / copy_rate:.2f}"]
    for other in ("eager", "default", "max-autotune-no-cudagraphs"):
        cells.append(against(by_name[other].seconds, ours)[0] if other in by_name else "")
    others = [s.seconds for s in sides if s.name != "ours"]
    best, least = against(min(others, key=statistics.median), ours)
    return f"| {name} | " + " | ".join([*cells, best]) + " |", least


def against(other: Sequence[float], ours: Sequence[float]) -> tuple[str, float]:
    """How many times as long another side takes: as text with its interval, and the median."""
    found = ratio([[[t] for t in other]], [[[t] for t in ours]])
    return f"{found.median:.2f}× ({found.low:.2f}–{found.high:.2f})", found.median


if __name__ == "__main__":
    main()
