"""What a process has left changed outside of its tensors is read back, and nothing else."""

from __future__ import annotations

import ctypes
import decimal
import gc
import locale
import os
import platform
import random
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping

import numpy
import pytest
import torch
from torch import nn

from fusewright.judge.isolation import process_globals, torch_globals
from tests.support.folders import ROOT

UPWARD = 0x400000 if platform.machine() == "aarch64" else 0x800
libc = ctypes.CDLL(None)
_fewer_files = (200, resource.getrlimit(resource.RLIMIT_NOFILE)[1])


def _own_handler(*_: object) -> None:
    """Of a signal, an event, a hook."""


# name -> what changes it, and what the line about it begins with.
CHANGES: Mapping[str, tuple[Callable[[], object], str]] = {
    "rounding": (lambda: libc.fesetround(UPWARD), "rounding of the processor"),
    "traps": (lambda: libc.feenableexcept(4), "rounding of the processor"),
    "denormals": (lambda: torch.set_flush_denormal(True), "rounding of the processor"),
    "cores": (lambda: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}), "cores"),
    "priority": (lambda: os.nice(1), "priority"),
    "mask": (lambda: os.umask(0o077), "file mode mask"),
    "environment": (lambda: os.environ.update(OMP_NUM_THREADS="1"), "environment variable OMP"),
    "setenv": (lambda: libc.setenv(b"LD_PRELOAD", b"x", 1), "environment variable LD_PRELOAD"),
    "unset": (lambda: os.environ.pop("HOME"), "environment variable HOME"),
    "folder": (lambda: os.chdir("/"), "working directory: became /"),
    "handler": (lambda: signal.signal(signal.SIGUSR1, _own_handler), "signal handler SIGUSR1"),
    "native": (lambda: libc.signal(12, ctypes.c_void_p(1)), "native signal handler: SIGUSR2"),
    "blocked": (lambda: signal.pthread_sigmask(signal.SIG_BLOCK, [15]), "blocked signals"),
    "timer": (lambda: signal.setitimer(signal.ITIMER_PROF, 1e6), "timers"),
    "limit": (lambda: resource.setrlimit(resource.RLIMIT_NOFILE, _fewer_files), "limit RLIMIT_NOF"),
    "redirect": (lambda: os.dup2(os.open("/dev/zero", os.O_RDONLY), 0), "file descriptor: 0"),
    "closed": (lambda: os.close(0), "file descriptor: 0"),
    "memory": (lambda: libc.mallopt(-6, 0), "memory filled with"),
    "trace": (lambda: sys.settrace(_own_handler), "trace function trace"),  # type: ignore[arg-type]
    "profile": (lambda: threading.setprofile(_own_handler), "trace function profile of threads"),
    "finder": (lambda: sys.meta_path.append(_own_handler), "import hooks: 1 more of"),  # type: ignore[arg-type]
    "collector": (gc.disable, "garbage collector"),
    "collected": (lambda: gc.callbacks.append(_own_handler), "garbage collector"),
    "switches": (lambda: sys.setswitchinterval(1.0), "switch interval"),
    "numpy": (lambda: numpy.seterr(all="raise"), "numpy's errors"),
    "decimals": (lambda: setattr(decimal.getcontext(), "prec", 5), "decimal numbers"),
    "locale": (lambda: locale.setlocale(locale.LC_ALL, "C"), "locale"),
    "sums": (lambda: _set_sums(False), "sums of half-precision products"),
    "precision": (lambda: setattr(torch.backends, "fp32_precision", "tf32"), "float32 precision"),
    "attention": (lambda: torch.backends.cuda.enable_math_sdp(False), "attention kernels math"),
    "layer": (lambda: setattr(nn.LayerNorm, "forward", _own_handler), "torch.nn.LayerNorm.forward"),
    "function": (lambda: setattr(numpy, "dot", _own_handler), "numpy.dot was replaced"),
}
HARMLESS: Mapping[str, Callable[[], object]] = {
    "nothing": lambda: None,
    "for builds": lambda: os.environ.update(TORCH_CUDA_ARCH_LIST="9.0a", MAX_JOBS="3"),
    "a file": lambda: os.open("/dev/null", os.O_RDONLY),
    "a higher limit": lambda: resource.setrlimit(
        resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2
    ),
    "restored": lambda: (os.chdir("/"), os.chdir(str(ROOT))),
}


def _set_sums(value: bool) -> None:
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = value


def main() -> None:
    """Each change in a fork: prints its name and the lines about it."""
    for name, change in {**{n: c for n, (c, _) in CHANGES.items()}, **HARMLESS}.items():
        if not os.fork():
            before = torch_globals.snapshot()
            change()
            found = torch_globals.changes(before)
            sys.stdout.write("".join(f"{name}\t{line}\n" for line in found or ["-"]))
            sys.stdout.flush()
            os._exit(0)
        os.wait()


@pytest.fixture(scope="module")
def said() -> Mapping[str, list[str]]:
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "MALLOC_PERTURB_": "7",
        "LC_ALL": "C.UTF-8",
    }
    order = [sys.executable, __file__]
    lines = subprocess.run(
        order, env=environment, cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    found: dict[str, list[str]] = {}
    for line in lines:
        name, _, text = line.partition("\t")
        found.setdefault(name, []).append(text)
    return found


@pytest.mark.parametrize("name", CHANGES)
def test_what_is_left_changed_is_seen(name: str, said: Mapping[str, list[str]]) -> None:
    assert any(line.startswith(CHANGES[name][1]) for line in said[name]), said[name]


@pytest.mark.parametrize("name", HARMLESS)
def test_what_harms_nobody_is_not(name: str, said: Mapping[str, list[str]]) -> None:
    assert said[name] == ["-"]


@pytest.mark.parametrize(
    ("name", "draw"),
    [
        ("PyTorch's", lambda: torch.rand(1)),
        ("numpy's", lambda: numpy.random.rand()),
        ("Python's", random.random),
    ],
)
def test_numbers_that_were_drawn_are_seen(name: str, draw: Callable[[], object]) -> None:
    before = process_globals.generators()
    assert process_globals.generators() == before
    draw()
    assert [n for n, s in process_globals.generators().items() if s != before[n]] == [name]


if __name__ == "__main__":
    main()
