"""What a suite and an arena know of those who do their runs, on this machine or on others.

A run is one command in a process of its own. A suite and an arena make `Command`s; a `Runner` does
them and says how each ended; a `Place` opens the runner that `--ray` asks for, or none does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from fusewright.suite.run_end import RunEnd

Program = Callable[[list[str]], object]
# Where the files of a command lie, and the path, without a suffix, of what it leaves -> its words.
Words = Callable[[Sequence[Path], Path], list[str]]


@dataclass(frozen=True)
class Command:
    """One run. name: of what it leaves in the folder of results, without a suffix.

    files: that its words name, which may lie elsewhere where it runs.  words: can be pickled.
    timed: whether it times calls.  device: the kind of machine that it must run on; "" for any.
    """

    name: str
    files: tuple[Path, ...]
    words: Words
    timed: bool
    device: str = ""


@dataclass(frozen=True)
class Work:
    """What the commands of a suite or an arena have in common.

    program: takes the words of a command.  output: folder of results.  timeout_s: of one run.
    target: "cpu", "cuda" or an architecture; None: the GPU where there is one.  timed: whether all
    of them time calls.
    """

    program: Program
    output: Path
    timeout_s: float
    target: str | None
    timed: bool = False


class Runner(Protocol):
    """Does runs, from any thread, and can stop them all. jobs: how many at once.  contests: how
    many at once of those that time several candidates."""

    jobs: int
    contests: int

    def launch(self, command: Command) -> RunEnd:
        """Do one run to its end, and say what came of it."""

    def has(self, device: str, /) -> bool:
        """Whether a machine of this kind is there, so that results of it still count."""

    def stop(self) -> None:
        """Kill what is running; nothing new starts."""


class Place(Protocol):
    """Where runs are done."""

    @property
    def machine(self) -> Sequence[str]:
        """What results depend on beside the files and the options."""

    @property
    def about(self) -> Mapping[str, object]:
        """What a report says of it."""

    def open(self, work: Work) -> AbstractContextManager[Runner]:
        """A runner for the block; raises BadUsage where it cannot be had."""


@contextmanager
def side_by_side(runner: Runner, number: int) -> Iterator[ThreadPoolExecutor]:
    """A pool of so many threads; if the block raises, what has begun ends, and nothing begins."""
    with ThreadPoolExecutor(number) as pool:
        try:
            yield pool
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            runner.stop()
            raise
