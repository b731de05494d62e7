"""Steps of a long command -> lines or a bar on a terminal; nothing where there is no terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


@contextmanager
def progress(console: Console) -> Iterator[Callable[..., None]]:
    """Yield a function to call at the start of each step; it prints the step before, with its time.

    Called again with the same step, the share of the whole that is done and the seconds that are
    left, it shows these beside the step. The last step is printed when the block ends, unless it
    ends with an error.
    """
    if not console.is_terminal:
        yield lambda *_: None
        return
    current: list[tuple[str, float]] = []

    def finish() -> None:
        for step, start_s in current:
            console.print(f"  {step} ({time.perf_counter() - start_s:.1f} s)", markup=False)
        current.clear()

    with console.status("starting") as status:

        def begin(step: str, share: float | None = None, left_s: float = 0.0) -> None:
            if not current or current[0][0] != step:
                finish()
                current.append((step, time.perf_counter()))
            seen = "" if share is None else f": {share:.0%} done, about {rounded(left_s)} s left"
            status.update(step.replace("[", r"\[") + seen)

        yield begin
        finish()


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
