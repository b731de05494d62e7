"""The most memory that a command and all that it starts have had: of the host, and of its GPU."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fusewright.devices import gpus

EVERY_S = 0.1
GPU = ("nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "-lms", "50")


class Peaks:
    """host: bytes, shared ones once.  gpu: bytes more than before, on the whole device."""

    def __init__(self) -> None:
        self.host = self.gpu = 0
        self._over = threading.Event()

    @contextmanager
    def of_gpu(self) -> Iterator[None]:
        """Within the block, the first GPU is looked at."""
        told = subprocess.Popen((*GPU, "-i", gpus()[0]), stdout=subprocess.PIPE, text=True)
        assert told.stdout is not None
        before = int(told.stdout.readline()) << 20

        def look() -> None:
            for line in told.stdout or ():
                self.gpu = max(self.gpu, (int(line) << 20) - before)

        thread = threading.Thread(target=look)
        thread.start()
        try:
            yield
        finally:
            told.kill()
            thread.join()

    @contextmanager
    def of_host(self, process: int) -> Iterator[None]:
        """Within the block, this process and its descendants are looked at."""

        def look() -> None:
            known = {process}
            while not self._over.wait(EVERY_S):
                known |= _descendants(known)
                self.host = max(self.host, sum(map(_share, known)))

        thread = threading.Thread(target=look)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()


def _descendants(known: set[int]) -> set[int]:
    """Processes whose parents are known; one whose parent has ended is known already, or lost."""
    found = dict[int, int]()
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError, IndexError):
            found[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    new = set[int]()
    while more := {p for p, parent in found.items() if parent in known | new} - known - new:
        new |= more
    return new


def _share(process: int) -> int:
    """Its own pages, and its part of those that it shares."""
    with suppress(OSError, StopIteration):
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))
    return 0


@contextmanager
def watched(process: int, *, gpu: bool) -> Iterator[Peaks]:
    """Within the block; what was seen is there behind it."""
    peaks = Peaks()
    with peaks.of_host(process):
        if not gpu:
            yield peaks
            return
        with peaks.of_gpu():
            yield peaks
