"""A question, or a command -> its answer within a time limit; nothing that is asked can hang us."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

T = TypeVar("T")
WORDS = 160  # characters of what a command said before it failed


class Unanswered(Exception):
    """There is no answer; the message says why."""


@dataclass
class _Asked(Generic[T]):
    """Filled in by the thread that asks."""

    answers: list[T]
    error: BaseException | None = None


def within(seconds: float, ask: Callable[[], T]) -> T:
    """The answer; raises Unanswered after so many seconds, and for whatever the question raises.

    What hangs is left behind in a thread that does not keep the process from ending.
    """
    asked: _Asked[T] = _Asked([])

    def answer() -> None:
        try:
            asked.answers.append(ask())
        except BaseException as error:  # noqa: BLE001 -- a question may end in any way
            asked.error = error

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    thread.join(seconds)
    if asked.answers:
        return asked.answers[0]
    if asked.error is None:
        raise Unanswered(f"no answer in {seconds:g} s")
    if isinstance(asked.error, Unanswered):
        raise asked.error
    raise Unanswered(_in_words(asked.error)) from asked.error


def _in_words(error: BaseException) -> str:
    said = " ".join(str(error).split())
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


@dataclass(frozen=True)
class Ran:
    """A command that ended well: what it wrote to standard output, and how long it took."""

    text: str
    seconds: float


def run(command: Sequence[str], seconds: float, folder: Path | None = None) -> Ran:
    """Run a command in a group of its own; raises Unanswered where it cannot be started, fails, or
    takes longer, when the whole group is killed. folder: where it runs."""
    start = time.monotonic()
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            cwd=folder,
            start_new_session=True,
        )
    except OSError as error:
        raise Unanswered(f"{command[0]} cannot be started: {error.strerror}") from error
    try:
        said, complaint = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired as error:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise Unanswered(f"{Path(command[0]).name} gave no answer in {seconds:g} s") from error
    if process.returncode:
        raise Unanswered(_failure(command[0], process.returncode, complaint or said))
    return Ran(said, time.monotonic() - start)


def _failure(program: str, code: int, words: str) -> str:
    how = f"ended with {signal.Signals(-code).name}" if code < 0 else f"failed with status {code}"
    lines = [line for line in words.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()]
    said = " ".join((errors or lines or [""])[-1].split())[:WORDS]
    return f"{Path(program).name} {how}" + (f": {said}" if said else "")
