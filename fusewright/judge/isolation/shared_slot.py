"""Memory between the judge's worker and one candidate's; an answer is taken out of it at once.

    judge's worker ─ inputs ─> candidate's worker ─ outputs ─> parent ─ taken ─> judge's worker

A candidate can write to its outputs for as long as it lives, also after it has said that they are
there. So the parent copies what an answer announces when the answer comes, before anybody looks at
it and within the time that its own clock sees; the judge's worker reads the copy only.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial

from fusewright.judge.isolation.protocol import (
    ON_DEVICE,
    ProtocolViolation,
    Region,
    TensorRecord,
    map_region,
)

BLOCK = 512  # bytes: the unit in which the system counts what a file takes
COPIERS = min(8, len(os.sched_getaffinity(0)))
PART = 16 << 20  # bytes that one of them copies at a time
# An answer of more bytes gives its pages back, so that it is there once; to get them anew takes a
# second a gigabyte.
KEPT = max(256 << 20, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 32)


def _copy(source: int, target: int, part: tuple[int, int]) -> None:
    """Not under Python's lock, so that several run at once."""
    offset, size = part
    ctypes.memmove(target + offset, source + offset, size)


@dataclass(frozen=True)
class Slot:
    inputs: Region
    outputs: Region
    taken: Region

    def take(self, tensors: Sequence[TensorRecord]) -> None:
        """Copy what these records announce, and no more than has been written.

        What lies on a GPU is taken by the judge's worker.
        """
        places = [(t.offset, t.nbytes) for t in tensors if t.nbytes and t.offset < ON_DEVICE]
        total = sum(size for _, size in places)
        written = os.fstat(self.outputs.fd).st_blocks * BLOCK if places else 0
        if total > written:
            raise ProtocolViolation(f"{total} bytes of results, of which {written} were written")
        parts = [
            (begin, min(PART, offset + size - begin))
            for offset, size in places
            for begin in range(offset, offset + size, PART)
        ]
        if parts:
            # Mapped before there are threads: cached_property has no lock since Python 3.12.
            copy = partial(_copy, *self._addresses)
            if len(parts) < 2 * COPIERS:
                for part in parts:
                    copy(part)
            else:
                with ThreadPoolExecutor(COPIERS) as pool:
                    list(pool.map(copy, parts))
        end = max((offset + size for offset, size in places), default=0)
        if end > KEPT:
            self._views[0].madvise(mmap.MADV_REMOVE, 0, -(-end // mmap.PAGESIZE) * mmap.PAGESIZE)

    def read(self, tensor: TensorRecord) -> bytes:
        """What has been taken of this one: a copy that nobody else writes to."""
        return self._views[1][tensor.offset : tensor.offset + tensor.nbytes]

    @cached_property
    def _views(self) -> tuple[mmap.mmap, mmap.mmap]:
        return map_region(self.outputs.fd, writable=True), map_region(self.taken.fd, writable=True)

    @cached_property
    def _addresses(self) -> tuple[int, int]:
        source, target = (ctypes.addressof(ctypes.c_char.from_buffer(v)) for v in self._views)
        return source, target

    def close(self) -> None:
        for region in (self.inputs, self.outputs, self.taken):
            region.close()
