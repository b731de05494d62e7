"""A process -> what is global in it outside of PyTorch, and what became of it.

How the processor rounds, where it runs, what its environment says, which signals, files, limits and
memory it has, what is called at its events.
All of it is read back, and none is remembered from what was called, so native code shows, too.
What names a value must be the same in every process: where a reference leaves the same behind, a
line of a candidate's is compared with one of the reference's.
"""

from __future__ import annotations

import ctypes
import decimal
import gc
import locale
import os
import random
import resource
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import numpy
import torch

_ELEMENTS, _SPARSE = 1 << 17, 1 << 10  # enough that PyTorch shares the work among its threads
_BLOCK = 8192  # bytes: more than glibc keeps in the lists of its threads, which it does not fill
# What compilers and builds read, and nothing that calculates: a candidate that is built needs it.
_OF_BUILDS = (
    "TORCH_CUDA_ARCH_LIST", "TORCH_EXTENSIONS_DIR", "MAX_JOBS", "CC", "CXX", "CUDA_HOME",
    "CUDA_PATH", "CUDA_MODULE_LOADING", "CUDACXX", "NVCC_", "TRITON_", "TORCHINDUCTOR_",
    "_TORCHINDUCTOR_", "CFLAGS", "CXXFLAGS", "LDFLAGS", "PATH",
)  # fmt: skip
_libc = ctypes.CDLL(None, use_errno=True)
_libc.malloc.restype, _libc.malloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)
_libc.free.restype, _libc.free.argtypes = None, (ctypes.c_void_p,)
_SIGNALS = sorted(signal.valid_signals())
_LIMITS = {n: getattr(resource, n) for n in sorted(dir(resource)) if n.startswith("RLIMIT_")}
_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)


def _rounding() -> list[float | int]:
    """For this thread, as its library and a number say; for those of PyTorch, as quotients show."""
    trapped = getattr(_libc, "fegetexcept", lambda: 0)()
    tiny = 5e-324
    divided = torch.ones(_ELEMENTS)
    divided[::_SPARSE] = 1e-39  # too small to be normal, which takes a processor long
    shown = [bound.item() for bound in torch.aminmax(divided.div_(3))]
    return [int(_libc.fegetround()), trapped, tiny * 1.0, *shown]


def _fresh_memory() -> int | None:
    """With which byte the allocator fills what it hands out; None if it does not."""
    first = _libc.malloc(_BLOCK)
    ctypes.memset(first, 0x5A, _BLOCK)
    _libc.free(first)
    second = _libc.malloc(_BLOCK)
    found = set(ctypes.string_at(second + _BLOCK // 2, 64))
    _libc.free(second)
    filled = len(found) == 1 and not found & {0, 0x5A}
    return found.pop() if filled else None


def _environment() -> dict[str, str]:
    """As native code sees it: `os.environ` is a copy, which `setenv` does not change."""
    place = ctypes.POINTER(ctypes.c_char_p).in_dll(_libc, "environ")
    found, number = {}, 0
    while place and (entry := place[number]) is not None:
        name, _, value = os.fsdecode(entry).partition("=")
        found[name] = value
        number += 1
    return {n: v for n, v in found.items() if not n.startswith(_OF_BUILDS)}


def _native_handlers() -> dict[str, int]:
    """What the kernel knows of them: an address, which begins glibc's `struct sigaction`."""
    old = ctypes.create_string_buffer(256)
    found = {}
    for number in _SIGNALS:
        if not _libc.sigaction(int(number), None, old):
            found[_name(number)] = ctypes.c_void_p.from_buffer(old).value or 0
    return found


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _status(*names: str) -> dict[str, str]:
    """Lines of /proc/self/status."""
    lines = (line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {pair[0]: pair[1].strip() for pair in lines if pair[0] in names}


def _files() -> dict[int, tuple[int, int]]:
    """What each descriptor refers to."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            at = os.fstat(int(name))
        except OSError:  # the one that listed this folder
            continue
        found[int(name)] = at.st_dev, at.st_ino
    return found


def _cuda_memory() -> dict[str, Any]:
    """How CUDA's memory is handed out; nothing before CUDA is used."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return {}
    share = getattr(torch.cuda, "get_per_process_memory_fraction", lambda: 1.0)
    settings = getattr(torch._C, "_accelerator_getAllocatorSettings", lambda: "")
    backend = torch.cuda.get_allocator_backend()
    return {"backend": backend, "share": share(), "settings": str(settings())}


def _hooks() -> dict[str, Any]:
    own = {"trace": sys.gettrace(), "profile": sys.getprofile()}
    return own | {
        "trace of threads": threading.gettrace(),
        "profile of threads": threading.getprofile(),
    }


# name -> how to read it. Values compare with ==; of a mapping, each entry does.
FLAGS: Mapping[str, Callable[[], Any]] = {
    "rounding of the processor": _rounding,
    "cores": lambda: sorted(os.sched_getaffinity(0)),
    "priority": lambda: (os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0)),
    "file mode mask": lambda: _status("Umask"),
    "environment variable": _environment,
    "working directory": os.getcwd,
    "signal handler": lambda: {_name(s): signal.getsignal(s) for s in _SIGNALS},
    "native signal handler": _native_handlers,
    "blocked signals": lambda: _status("SigBlk"),
    "timers": lambda: [bool(signal.getitimer(timer)[0]) for timer in _TIMERS],
    "limit": lambda: {name: resource.getrlimit(number) for name, number in _LIMITS.items()},
    "file descriptor": _files,
    "memory filled with": _fresh_memory,
    "CUDA's memory": _cuda_memory,
    "trace function": _hooks,
    "import hooks": lambda: [named(hook) for hook in (*sys.meta_path, *sys.path_hooks)],
    "garbage collector": lambda: (gc.isenabled(), gc.get_threshold(), [*map(named, gc.callbacks)]),
    "switch interval": sys.getswitchinterval,
    "numpy's errors": numpy.geterr,
    "decimal numbers": lambda: (decimal.getcontext().prec, decimal.getcontext().rounding),
    "locale": lambda: locale.setlocale(locale.LC_ALL),
}
# A process may come to have more of these, and nobody has lost anything.
_MAY_GROW = ("file descriptor", "CUDA's memory")
# Numbers of these mean nothing in another process, nor does the folder that a process starts in.
_NUMBERS = ("native signal handler", "file descriptor")


def lines(name: str, old: Any, new: Any) -> list[str]:
    """What became of one flag, in words that another process would use, too."""
    if name == "import hooks":
        return _came_and_went(name, old, new)
    if name == "limit":
        lowered = [n for n in old if _size(new[n][0]) < _size(old[n][0])]
        return [f"{name} {n}: {old[n][0]} became {new[n][0]}" for n in lowered]
    if name == "working directory":
        return [f"{name}: became {new}"]
    if not isinstance(old, Mapping):
        return [f"{name}: {old!s:.80} became {new!s:.80}"] if old != new else []
    changed = [n for n in (*old, *(n for n in new if n not in old)) if old.get(n) != new.get(n)]
    kept = [n for n in changed if n in old or name not in _MAY_GROW]
    if name in _NUMBERS:
        return [f"{name}: {n} is another one" for n in kept]
    return [f"{name} {n}: {named(old.get(n))} became {named(new.get(n))}" for n in kept]


def _came_and_went(name: str, old: list[str], new: list[str]) -> list[str]:
    came, went = Counter(new) - Counter(old), Counter(old) - Counter(new)
    found = [f"{name}: {count} more of {hook}" for hook, count in came.items()]
    found += [f"{name}: {count} less of {hook}" for hook, count in went.items()]
    return found or [f"{name}: in another order"]


def _size(limit: int) -> float:
    return float("inf") if limit == resource.RLIM_INFINITY else limit


def named(thing: Any) -> str:
    if isinstance(thing, Enum):
        return thing.name
    if thing is None or isinstance(thing, (int, float, str)):
        return str(thing)[:80]
    return str(getattr(thing, "__qualname__", type(thing).__qualname__))[:80]


def generators() -> dict[str, Any]:
    """The states of the random generators that everybody shares."""
    kind, key, *rest = numpy.random.get_state(legacy=True)
    found = {
        "PyTorch's": bytes(torch.default_generator.get_state().numpy()),
        "numpy's": (kind, numpy.asarray(key).tobytes(), *rest),
        "Python's": random.getstate(),
    }
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        found["CUDA's"] = bytes(torch.cuda.get_rng_state().numpy())
    return found
