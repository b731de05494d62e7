"""Memory between the judge's worker and one candidate's; an answer is taken out of it at once.

    judge's worker ─ inputs ─> candidate's worker ─ outputs ─> parent ─ taken ─> judge's worker

A candidate can write to its outputs for as long as it lives, also after it has said that they are
there. So the parent copies what an answer announces when the answer comes, before anybody looks at
it and within the time that its own clock sees; the judge's worker reads the copy only.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from fusewright.judge.protocol import ProtocolViolation, Region, TensorRecord, map_region

BLOCK = 512  # bytes: the unit in which the system counts what a file takes
# An answer of more bytes gives its pages back, so that it is there once; to get them anew takes a
# second a gigabyte.
LARGE = max(256 << 20, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 32)


@dataclass(frozen=True)
class Slot:
    inputs: Region
    outputs: Region
    taken: Region

    def take(self, tensors: Sequence[TensorRecord]) -> None:
        """Copy what these records announce, and no more than has been written."""
        places = [(t.offset, t.nbytes) for t in tensors if t.nbytes]
        total = sum(size for _, size in places)
        written = os.fstat(self.outputs.fd).st_blocks * BLOCK if places else 0
        if total > written:
            raise ProtocolViolation(f"{total} bytes of results, of which {written} were written")
        for offset, size in places:
            _write(self.taken.fd, memoryview(self._view)[offset : offset + size], offset)
        if total > LARGE:
            self._view.madvise(mmap.MADV_REMOVE, 0, _pages(places))

    @cached_property
    def _view(self) -> mmap.mmap:
        return map_region(self.outputs.fd, writable=True)

    def close(self) -> None:
        for region in (self.inputs, self.outputs, self.taken):
            region.close()


def _write(to: int, what: memoryview, offset: int) -> None:
    while what:  # Linux writes at most 2 GB at a time
        done = os.pwrite(to, what, offset)
        what, offset = what[done:], offset + done


def _pages(places: Sequence[tuple[int, int]]) -> int:
    end = max(offset + size for offset, size in places)
    return -(-end // mmap.PAGESIZE) * mmap.PAGESIZE
