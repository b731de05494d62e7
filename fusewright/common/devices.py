"""The GPUs of this machine, by the names that CUDA_VISIBLE_DEVICES takes, and free memory; found
without PyTorch."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

VISIBLE = "CUDA_VISIBLE_DEVICES"
FREE = ("nvidia-smi", "--query-gpu=memory.free", "--format=csv,noheader,nounits")
ASKED = ("nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader")
KIND = ("nvidia-smi", "--query-gpu=name,compute_cap", "--format=csv,noheader")
STATE = ("nvidia-smi", "--query-gpu=name,driver_version,clocks.sm,clocks.max.sm", *FREE[2:])
PATIENCE_S = 20.0  # a driver that nobody has used for a while takes some seconds to answer


def gpus() -> tuple[str, ...]:
    """Those that the caller's environment names, or else all that the driver lists; () for none."""
    if (named := os.environ.get(VISIBLE)) is not None:
        return tuple(name.strip() for name in named.split(",") if name.strip())
    try:
        told = subprocess.run(ASKED, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    except (OSError, subprocess.SubprocessError):  # no driver, or one that does not answer
        return ()
    return tuple(line.strip() for line in told.stdout.splitlines() if line.strip())


def free_of(names: Sequence[str]) -> Mapping[str, int]:
    """Bytes that are free on each of these; of one that does not answer nothing is known."""
    found: dict[str, int] = {}
    for name in names:
        asked = (*FREE, "-i", name)
        with suppress(OSError, subprocess.SubprocessError, ValueError):
            told = subprocess.run(
                asked, capture_output=True, text=True, timeout=PATIENCE_S, check=True
            )
            found[name] = int(told.stdout) << 20
    return found


def host_free() -> int:
    """Bytes of the host's memory that could be had now."""
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))


@cache
def kind_of(gpu: str) -> str:
    """What results that depend on the hardware are of: the name of a GPU, or for "" that of this
    machine's processor with how many of it there are."""
    if gpu:
        return gpu_kind(gpu)[0]
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return f"{os.cpu_count()} x {next(named, '') or platform.machine()}"


def gpu_kind(gpu: str) -> tuple[str, str]:
    """The name of a GPU and its compute capability, as in "9.0"; "a GPU" and "" where its driver
    does not say."""
    try:
        told = subprocess.run(
            (*KIND, "-i", gpu), capture_output=True, text=True, timeout=PATIENCE_S, check=True
        )
        name, capability = told.stdout.splitlines()[0].rsplit(",", 1)
    except (OSError, subprocess.SubprocessError, IndexError, ValueError):
        return "a GPU", ""
    return name.strip(), capability.strip()


@dataclass(frozen=True)
class DriverState:
    """A GPU as its driver sees it. clock, most: in MHz, of its processors, now and ever; as text,
    which is in brackets where the driver does not tell."""

    name: str
    driver: str
    clock: str
    most: str


def driver_states() -> tuple[DriverState, ...]:
    """Of all GPUs that the driver lists; raises OSError or SubprocessError where none answers."""
    told = subprocess.run(STATE, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    rows = [[cell.strip() for cell in line.split(",")] for line in told.stdout.splitlines()]
    return tuple(DriverState(*row) for row in rows if len(row) == len(STATE[1].split(",")))
