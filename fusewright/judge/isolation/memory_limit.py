"""Bytes -> a limit on what this process may take, an error to catch and not the end of the machine.

Some models grow faster than their inputs: all pairs of a batch, for instance. What a case needs is
asked by running the reference on it below a limit of the system: there it raises before it has
taken anything, and the case is left out as too large.
"""

from __future__ import annotations

import ctypes
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

from fusewright.common.devices import host_free

GROWN_BYTES = 256 << 20  # what one run of a case that is larger than the problem's own may take
# Powers of two: blocks that the allocator of CUDA gives out again.
_KEPT = (9, 12, 16, 19, 20, 21, 24)
LIMIT_SHARE = 0.7  # of the memory that is free when a problem is opened, for the trusted worker


@contextmanager
def within(size: int, device: str) -> Iterator[None]:
    """In here, so many bytes more than now may be taken."""
    (_on_cuda if device == "cuda" else _on_cpu)(size)
    try:
        yield
    finally:
        (_on_cuda if device == "cuda" else _on_cpu)(None)


_worker_limit = resource.RLIM_INFINITY  # of the whole worker, to which `within` comes back


def limit_worker() -> None:
    """From now on this process gets an error where it would take most of what is free."""
    global _worker_limit
    _worker_limit = _held() + int(LIMIT_SHARE * host_free())
    _on_cpu(None)


def _on_cpu(size: int | None) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limits = [_worker_limit, hard, resource.RLIM_INFINITY if size is None else _held() + size]
    finite = [limit for limit in limits if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min(finite, default=hard), hard))


def _on_cuda(size: int | None) -> None:
    share = 1.0
    if size is not None:
        torch.cuda.empty_cache()
        total = torch.cuda.get_device_properties(0).total_memory
        share = min(1.0, (torch.cuda.memory_reserved() + size) / total)
    torch.cuda.set_per_process_memory_fraction(share)


_M_PERTURB = -6  # of glibc's mallopt


@contextmanager
def filled(byte: int, device: str) -> Iterator[None]:
    """In here, memory that is given out holds something else than before, as far as the allocator
    can be told: what reads what nobody has written gives another answer."""
    if device == "cuda":
        freed = [torch.full((1 << size,), byte, dtype=torch.uint8, device=device) for size in _KEPT]
        freed.clear()
    tell = getattr(ctypes.CDLL(None), "mallopt", lambda *_: 0)  # only glibc has it
    tell(_M_PERTURB, byte)
    try:
        yield
    finally:
        tell(_M_PERTURB, 0)


def give_back(device: str) -> None:
    """What PyTorch keeps of a GPU's memory for later goes back if less than that is free: others
    are about to need it."""
    if device == "cuda":
        kept = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
        if kept > torch.cuda.mem_get_info()[0]:
            torch.cuda.empty_cache()


class Peak:
    """The most memory that what happens within takes, beside what was held before."""

    def __init__(self, device: str) -> None:
        self.size, self._cuda = 0, device == "cuda"

    def __enter__(self) -> Peak:
        if self._cuda:
            torch.cuda.reset_peak_memory_stats()
            self._before = torch.cuda.memory_allocated()
        else:
            with suppress(OSError):  # without the right to, the peak is that of the whole life
                Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
            self._before = _read("/proc/self/status", "VmRSS:")
        return self

    def __exit__(self, *_: object) -> None:
        most = torch.cuda.max_memory_allocated if self._cuda else _most_resident
        self.size = max(0, most() - self._before)


def _most_resident() -> int:
    return _read("/proc/self/status", "VmHWM:")


def _held() -> int:
    return _read("/proc/self/status", "VmData:")


def _read(path: str, name: str) -> int:
    lines = Path(path).read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(name))
