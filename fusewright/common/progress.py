"""Steps of a long command -> lines or a bar on a terminal; nothing where there is no terminal.

Commands call a function with the name of each step, and know nothing of terminals. A judging says
how much of it is left, too, so that who waits sees whether to wait.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, runtime_checkable

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.status import Status


@runtime_checkable
class Left(Protocol):
    """Who is told about steps may want to know, too, how much of the whole is done and left."""

    def left(self, share: float, seconds: float) -> None:
        """The share of the whole that is done, from 0 to 1, and the seconds that are left."""


class Steps:
    """On a terminal: the current step, with what is done and left; a line for each that is over."""

    def __init__(self, console: Console, status: Status) -> None:
        self._console, self._status = console, status
        self._step, self._since = "", 0.0

    def __call__(self, step: str) -> None:
        """The next step begins."""
        self.finish()
        self._step, self._since = step, time.perf_counter()
        self._status.update(_escaped(step))

    def left(self, share: float, seconds: float) -> None:
        """Of the whole, beside the current step."""
        said = f": {share:.0%} done, about {rounded(seconds)} s left"
        self._status.update(_escaped(self._step) + said)

    def finish(self) -> None:
        """The current step is over: its line, with its time."""
        if self._step:
            seconds = time.perf_counter() - self._since
            self._console.print(f"  {self._step} ({seconds:.1f} s)", markup=False)
        self._step = ""


@contextmanager
def progress(console: Console) -> Iterator[Callable[[str], None]]:
    """Yield a function to call at the start of each step; it prints the step before, with its time.

    On a terminal it has a method `left`, too (see `Left`). The last step is printed when the block
    ends, unless it ends with an error.
    """
    if not console.is_terminal:
        yield lambda _step: None
        return
    with console.status("starting") as status:
        steps = Steps(console, status)
        yield steps
        steps.finish()


def _escaped(step: str) -> str:
    return step.replace("[", r"\[")


def rounded(seconds: float) -> int:
    """To a number of one or two digits: nobody knows more."""
    return round(seconds) if seconds < 20 else 5 * round(seconds / 5)


@contextmanager
def bar(console: Console, total: int) -> Iterator[Callable[[str], None]]:
    """Yield a function to call after each of `total` steps, with what to show beside the bar."""
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    text = TextColumn("{task.description}", markup=False)
    with Progress(*columns, text, console=console, disable=not console.is_terminal) as shown:
        task = shown.add_task("starting", total=total)
        yield lambda step: shown.update(task, advance=1, description=step)
