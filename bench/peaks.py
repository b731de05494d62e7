"""The most memory that a command and all that it starts have had: of the host, and of its GPU.

Both are seen from outside, on the whole machine: nothing else may run beside the command. To look
at the pages of each process would stop the process while it is looked at.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fusewright.common.devices import gpus, host_free

EVERY_S = 0.05
GPU = ("nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "-lms", "50")


class Peaks:
    """host, gpu: bytes more than before."""

    def __init__(self) -> None:
        self.host = self.gpu = 0

    @contextmanager
    def of_gpu(self) -> Iterator[None]:
        """Within the block, the first GPU is looked at."""
        told = subprocess.Popen((*GPU, "-i", gpus()[0]), stdout=subprocess.PIPE, text=True)
        assert told.stdout is not None
        before = int(told.stdout.readline()) << 20

        def look() -> None:
            for line in told.stdout or ():
                self.gpu = max(self.gpu, (int(line) << 20) - before)

        with _beside(look, told.kill):
            yield

    @contextmanager
    def of_host(self) -> Iterator[None]:
        """Within the block, what is free is looked at."""
        before, over = host_free(), threading.Event()

        def look() -> None:
            while not over.wait(EVERY_S):
                self.host = max(self.host, before - host_free())

        with _beside(look, over.set):
            yield


@contextmanager
def _beside(look: Callable[[], None], stop: Callable[[], None]) -> Iterator[None]:
    """`look` runs beside the block, and ends when `stop` has been called."""
    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield
    finally:
        stop()
        thread.join()


@contextmanager
def watched(*, gpu: bool) -> Iterator[Peaks]:
    """Within the block; what was seen is there behind it."""
    peaks = Peaks()
    with peaks.of_host():
        if not gpu:
            yield peaks
            return
        with peaks.of_gpu():
            yield peaks
