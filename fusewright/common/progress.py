"""Steps of a long command -> lines or a bar on a terminal; nothing where there is no terminal.

Commands call a function with the name of each step, and know nothing of terminals. A judging says
how much of it is left, too, so that who waits sees whether to wait.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
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
            said = f"  {self._step} ({seconds:.1f} s)"
            self._console.print(said, markup=False, highlight=False)
        self._step = ""


@contextmanager
def progress(console: Console, *, lines: bool = False) -> Iterator[Callable[[str], None]]:
    """Yield a function to call at the start of each step; it prints the step before, with its time.

    On a terminal it has a method `left`, too (see `Left`). The last step is printed when the block
    ends, unless it ends with an error. lines: where there is no terminal, each step is a line when
    it begins; else nothing is said there.
    """
    if not console.is_terminal:
        yield partial(_line, console) if lines else _unsaid
        return
    with console.status("starting") as status:
        steps = Steps(console, status)
        yield steps
        steps.finish()


def _line(console: Console, step: str) -> None:
    console.print(f"  {step} ...", markup=False, highlight=False, soft_wrap=True)


def _unsaid(_: str) -> None:
    """A step that nobody sees."""


def _escaped(step: str) -> str:
    return step.replace("[", r"\[")


def rounded(seconds: float) -> int:
    """To a number of one or two digits: nobody knows more."""
    return round(seconds) if seconds < 20 else 5 * round(seconds / 5)


class Several:
    """Things that are done side by side: which are at hand, how many are done.

    Its methods may be called by any thread.
    """

    def __init__(self, shown: Progress, total: int) -> None:
        self._shown, self._task = shown, shown.add_task("starting", total=total)
        self._lock = threading.Lock()
        self._at_hand: list[str] = []
        self._done = ""

    def begin(self, name: str) -> None:
        """This one is at hand."""
        with self._lock:
            self._at_hand.append(name)
            self._update()

    def end(self, name: str, done: str) -> None:
        """It is over. done: what is said of all that is over, beside what is at hand."""
        with self._lock:
            if name in self._at_hand:
                self._at_hand.remove(name)
            self._done = done
            self._update(advance=1)

    def _update(self, advance: int = 0) -> None:
        """The one that began last is named, as what it does is newest."""
        now = self._at_hand[-1:] + [f"{len(self._at_hand) - 1} more"] * (len(self._at_hand) > 1)
        text = "; ".join(part for part in (" and ".join(now), self._done) if part)
        self._shown.update(self._task, advance=advance, description=text)


@contextmanager
def bar(console: Console, total: int, *, quiet: bool = False) -> Iterator[Several]:
    """Yield what is told which of `total` things begin and end; a bar on a terminal."""
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    text = TextColumn("{task.description}", markup=False)
    hidden = quiet or not console.is_terminal
    with Progress(*columns, text, console=console, disable=hidden) as shown:
        yield Several(shown, total)
