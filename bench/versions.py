"""Two versions of the compiler -> which kernels became slower: the same models, timed in pairs.

    python bench/versions.py OLD [--device cpu|cuda] [--rounds N] [--jobs N] [--table | --networks]
                             [--seconds S] [--processor] [NAME ...]

OLD is a folder with an earlier checkout (`git worktree add OLD COMMIT`). Each version writes the
text of every model of bench/models.py (--table: single operators; --networks: bench/networks.py) in
processes of its own, and compiles it; then both texts run on the same parameters in one process,
in random order, each round with fresh inputs and, on CUDA, cold caches. Texts that are the same are
not timed. A row says the median of (new / old) over rounds with its 95 % interval: above 1, the
new version is slower. Exit 1 if one is slower by more than 2 % beyond its interval. --seconds: what
is not timed by then is named as not measured. --processor counts the processor seconds of all
threads, for a CPU that others use, too; set OMP_WAIT_POLICY=PASSIVE.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parent.parent
MOST = 1.02

if TYPE_CHECKING:
    from torch import Tensor, nn


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("old", type=Path)
    options.add_argument("--device", default="cuda")
    options.add_argument("--rounds", type=int, default=21)
    options.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) - 2))
    options.add_argument("--table", action="store_true")
    options.add_argument("--networks", action="store_true")
    options.add_argument("--processor", action="store_true")
    options.add_argument("--seconds", type=float, default=float("inf"))
    options.add_argument("--write", type=Path, help="write one model's text here, and end")
    options.add_argument("names", nargs="*")
    given = options.parse_intermixed_args()
    if given.write:
        _write(given)
        return 0
    return _compare(given)


def _entries(given: argparse.Namespace) -> dict[str, object]:
    sys.path += [str(ROOT), str(ROOT / "bench")]  # behind PYTHONPATH, which names the version
    from models import entries, table
    from networks import networks

    size = "gpu" if given.device == "cuda" else "cpu"
    every = (networks if given.networks else table if given.table else entries)(size)
    return {n: e for n, e in every.items() if not given.names or n in given.names}


def _made(name: str, given: argparse.Namespace) -> tuple[nn.Module, list[Tensor]]:
    import torch

    torch.manual_seed(0)
    module, inputs = _entries(given)[name]()  # type: ignore[operator]
    return module, inputs()


def _write(given: argparse.Namespace) -> None:
    """With whichever fusewright is imported: the text of one model, compiled once."""
    from fusewright.build.fused_module import build_all, scope_of
    from fusewright.compiler import pipeline
    from fusewright.emit.emitted_file import emit_bare_class
    from fusewright.targets.detect import resolve_target

    (name,) = given.names
    machine, _ = resolve_target(given.device)
    module, inputs = _made(name, given)
    made = vars(pipeline)["make"](module, inputs, machine)  # wherever it is defined
    if not made.replaced:
        given.write.write_text("", encoding="utf-8")
        return
    runtime, new = pipeline._code(made, module, scope_of(module))
    if made.kernels:
        (why,) = build_all([str(runtime)], time.monotonic() + 500)
        assert not why, why
    given.write.write_text(emit_bare_class(runtime, new), encoding="utf-8")


def _texts(name: str, given: argparse.Namespace, folder: Path) -> list[str] | str:
    """The texts of the old and the new version, or what went wrong."""
    found = []
    flags = ["--device", given.device, *["--table"] * given.table]
    flags += ["--networks"] * given.networks
    for k, version in enumerate((given.old.resolve(), ROOT)):
        path = folder / f"{name}_{k}.py"
        command = [sys.executable, __file__, str(given.old), *flags, "--write", str(path), name]
        environment = {**os.environ, "PYTHONPATH": str(version)}
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env=environment, cwd=version
        )
        if done.returncode:
            return f"{version}: {done.stderr[-300:]}"
        found.append(path.read_text(encoding="utf-8"))
    return found


def _compare(given: argparse.Namespace) -> int:
    import torch

    end, names, slower, ratios = time.monotonic() + given.seconds, [*_entries(given)], 0, []
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(given.jobs) as pool:
        texts = dict(zip(names, pool.map(lambda n: _texts(n, given, Path(folder)), names),
                         strict=True))  # fmt: skip
    machine = torch.cuda.get_device_name() if given.device == "cuda" else "CPU"
    print(
        f"{machine}, torch {torch.__version__}, {time.strftime('%F %R')}, {given.rounds} rounds\n"
    )
    print("| model | new ms | new / old (95 %) | |\n|---|---|---|---|", flush=True)
    for name, found in texts.items():
        if isinstance(found, str):
            print(f"| {name} | | failed: {found} | |")
            continue
        if found[0] == found[1]:
            print(f"| {name} | | the same text | |")
            continue
        if time.monotonic() > end:
            print(f"| {name} | | not measured | |")
            continue
        text, middle, worse = _row(name, found, given)
        slower += worse
        ratios.append(middle)
        print(f"| {name} | {text} | {'slower' * worse} |", flush=True)
    mean = statistics.geometric_mean(ratios) if ratios else 1.0
    print(f"\n{len(ratios)} timed, geometric mean {mean:.4f}, {slower} slower than {MOST}")
    return 1 if slower else 0


def _row(name: str, texts: Sequence[str], given: argparse.Namespace) -> tuple[str, float, bool]:
    import copy

    import torch
    from compare import _time

    from fusewright.build.fused_module import fused_module
    from fusewright.judge.timing.statistics import ratio

    module, inputs = _made(name, given)
    module = module.to(given.device)
    sides = [fused_module(copy.deepcopy(module), text) for text in texts]
    clock = time.process_time if given.processor else time.perf_counter
    seconds: list[list[float]] = [[], []]
    with torch.no_grad():
        first = [x.to(given.device) for x in inputs]
        for side in sides:
            for _ in range(3):
                side(*first)
        for _ in range(given.rounds):
            fresh = [torch.randn_like(x) if x.is_floating_point() else x.clone() for x in first]
            for k in random.sample((0, 1), 2):
                seconds[k].append(_time(sides[k], fresh, given.device, clock))
    found = ratio([[[t] for t in seconds[1]]], [[[t] for t in seconds[0]]])
    milliseconds = statistics.median(seconds[1]) * 1e3
    text = f"{milliseconds:.4f} | {found.median:.4f} ({found.low:.4f}–{found.high:.4f})"
    return text, found.median, found.low > MOST


if __name__ == "__main__":
    sys.exit(main())
