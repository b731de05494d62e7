"""Memory that reads as zeros and takes no room until somebody writes to it or reads it.

Planning asks tensors for sizes, strides, types and places in memory, never for values, so tensors
of many gigabytes may lie in such memory. On the CPU it is a mapping that the system fills page by
page; it is shared, so that a limit on a process's own memory does not count it.
"""

from __future__ import annotations

import mmap

import torch

LARGE = 1 << 26  # bytes; less than that is had at once


def untouched(size: int) -> torch.UntypedStorage:
    """So many bytes of the CPU's memory; raises OSError where the system has no such addresses."""
    if size < LARGE:
        return torch.zeros(size, dtype=torch.uint8, device="cpu").untyped_storage()
    reserve_nothing: int = getattr(mmap, "MAP_NORESERVE", 0)
    flags = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | reserve_nothing
    memory = torch.frombuffer(mmap.mmap(-1, size, flags), dtype=torch.uint8)
    assert memory.device.type == "cpu", "a mapping is the host's"
    return memory.untyped_storage()


def placed(
    storage: torch.UntypedStorage,
    offset: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    dtype: torch.dtype,
) -> torch.Tensor:
    """The tensor that lies there. offset: in elements."""
    return torch.empty(0, dtype=dtype, device="cpu").set_(storage, offset, shape, strides)
