"""A command beside neighbours that take the machine: every core, its memory, a GPU and its time.

    python bench/neighbours.py [--cores N] [--memory SHARE] [--gpu-left GB] -- COMMAND ARGUMENT...

One process for each of N cores multiplies without a pause; others hold SHARE of what memory is
available, every page touched; --gpu-left: one holds all memory of the first GPU but so many GB, and
keeps it busy with products. The command starts when all of them have what they want, and they end
with it. Its exit status is this program's.

Without an installed fusewright: PYTHONPATH=. python3 bench/neighbours.py -- python3 bench/corpus.py
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.synchronize import Event

GB = 1 << 30
PAGE = 4096
HOLDERS = 8  # processes that touch pages side by side


def main() -> int:
    given = _arguments()
    start = multiprocessing.get_context("spawn")  # a GPU cannot be used behind a fork
    ready: list[Event] = []
    neighbours = []

    def add(work: Callable[..., None], *args: object) -> None:
        ready.append(start.Event())
        neighbours.append(start.Process(target=work, args=(ready[-1], *args), daemon=True))

    for _ in range(given.cores):
        add(_multiply)
    if given.memory:
        for _ in range(HOLDERS):
            add(_hold, int(given.memory * _available() / HOLDERS))
    if given.gpu_left is not None:
        add(_occupy, int(given.gpu_left * GB))
    try:
        for process in neighbours:
            process.start()
        for process, event in zip(neighbours, ready, strict=True):
            while not event.wait(1.0):
                if not process.is_alive():
                    sys.exit("A neighbour ended before it had what it wanted: less is free.")
        print(f"{len(neighbours)} neighbours; {_available() / GB:.1f} GB available", flush=True)
        return subprocess.run(given.command, check=False).returncode
    finally:
        for process in neighbours:
            process.kill()
            process.join()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cores", type=int, default=0, help="processes that never pause")
    parser.add_argument("--memory", type=float, default=0.0, help="share of what is available")
    parser.add_argument("--gpu-left", type=float, help="GB of the first GPU that stay free")
    parser.add_argument("command", nargs="+")
    return parser.parse_args()


def _available() -> int:
    """Bytes of memory that processes may still have: the machine's, or the container's."""
    with open("/proc/meminfo", encoding="ascii") as lines:
        found = [int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")]
    with suppress(OSError, ValueError):  # no such files, or "max"
        limit, used = (_number(f"/sys/fs/cgroup/memory.{name}") for name in ("max", "current"))
        found.append(limit - used)
    return min(found)


def _number(path: str) -> int:
    with open(path, encoding="ascii") as file:
        return int(file.read())


def _multiply(ready: Event) -> None:
    ready.set()
    number = 1
    while True:
        number = number * 6364136223846793005 % (1 << 64) | 1


def _hold(ready: Event, size: int) -> None:
    held = bytearray(size)
    for start in range(0, size, PAGE):
        held[start] = 1
    ready.set()
    while True:
        time.sleep(3600)


def _occupy(ready: Event, left: int) -> None:
    import torch

    held = []
    x = torch.randn(4096, 4096, device="cuda")
    y = x @ x
    while (free := torch.cuda.mem_get_info()[0] - left) > 0:
        held.append(torch.empty(min(free, GB), dtype=torch.uint8, device="cuda"))
        if free < 2 << 20:  # less is no allocation of its own
            break
    torch.cuda.synchronize()
    ready.set()
    while os.getppid() != 1:
        for _ in range(16):
            torch.mm(x, x, out=y)
        torch.cuda.synchronize()


if __name__ == "__main__":
    sys.exit(main())
