"""Shared memory that a GPU reads and writes itself.

What a GPU copies from or to ordinary memory goes through a buffer of its driver, by one core, at
some gigabytes a second. Where the driver has *registered* the memory, the GPU does it alone and
several times as fast. To register costs about what one such copy does, and each call of a phase
copies over the same first bytes of a region: so these are registered, in steps that double. Where
a driver refuses, the memory stays as it is: slower, and as right. Pages that are not there yet are
asked for all at once: to get them one by one, when they are first written to, takes some times as
long.

Registered pages must not be given back while they are: the GPU would go on with pages that nobody
else sees any more. So there are none in a region of which more than `most` bytes have been used:
`Slot.take` gives those of answers back where there are more than KEPT.
"""

from __future__ import annotations

import mmap
import os
import warnings
from contextlib import suppress

import torch
from torch import Tensor

from fusewright.judge.isolation.shared_slot import KEPT

LEAST = 4 << 20  # bytes: below, a copy by the driver takes no longer
STEP = 2 << 20
ASKED = 4 * KEPT  # bytes of questions, whose pages nobody gives back
READ_ONLY = 8  # cudaHostRegisterReadOnly: the mapping allows no more
# Bound before any candidate is imported.
_frombuffer, _synchronize, _zeros = torch.frombuffer, torch.cuda.synchronize, torch.zeros
_cudart, _allocate = torch.cuda.cudart, os.posix_fallocate


class Pinned(mmap.mmap):
    """A region as a process sees it that copies between it and a GPU."""

    fd = -1
    writable = True
    most = KEPT
    for_gpu = False
    device: Tensor | None = None  # what lies behind it, from ON_DEVICE on: memory of the GPU
    _registered = 0  # bytes, from the first one on

    def reach(self, end: int) -> None:
        """What lies before `end` is about to be copied from or to a GPU."""
        if not self.for_gpu or end < LEAST or end <= self._registered:
            return
        before, self._registered = self._registered, 0
        if before:
            _synchronize()
            _cudart().cudaHostUnregister(self._address())  # type: ignore[no-untyped-call]
        size = -(-max(end, 2 * before) // STEP) * STEP
        # Never beyond `most`: who comes to lie there shall find nothing registered.
        self.for_gpu = end <= self.most and self._register(min(size, self.most, len(self)))

    def _register(self, size: int) -> bool:
        if self.writable:
            with suppress(OSError):  # then one by one
                _allocate(self.fd, 0, size)
        flags = 0 if self.writable else READ_ONLY
        refused = int(_cudart().cudaHostRegister(self._address(), size, flags))  # type: ignore[no-untyped-call]
        if refused:
            with suppress(RuntimeError):  # else the next kernel would raise what was said here
                _zeros(1, device="cuda")
            return False
        self._registered = size
        return True

    def _address(self) -> int:
        with warnings.catch_warnings():  # nobody writes to what is not writable
            warnings.simplefilter("ignore")
            return _frombuffer(self, dtype=torch.uint8, count=1).data_ptr()


def map_pinned(fd: int, *, writable: bool, for_gpu: bool = False, most: int = KEPT) -> Pinned:
    """most: bytes of it that may be registered."""
    protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    mapping = Pinned(fd, os.fstat(fd).st_size, mmap.MAP_SHARED, protection)
    mapping.fd, mapping.writable, mapping.for_gpu, mapping.most = fd, writable, for_gpu, most
    return mapping


def reach(region: mmap.mmap, end: int) -> None:
    """What lies before `end` is about to be copied."""
    if isinstance(region, Pinned):
        region.reach(end)
