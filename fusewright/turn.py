"""Several runs on one machine -> many may work at once, but who times calls has it to itself.

So has a run that had too little memory beside others, from its beginning to its end.

A run asks for its turn over a socket before it times anything, and says when it is over: `ask` in
the run, `Machine` in the suite that started it. Whoever waits comes before whoever would start.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fusewright.errors import NotVerifiable

ASK, GO, OVER = b"?", b"!", b"."


@contextmanager
def ask(descriptor: int) -> Iterator[None]:
    """Wait for the turn on the line with this descriptor; raises NotVerifiable if none can come."""
    os.set_inheritable(descriptor, False)  # the judge's workers are no business of the suite
    with socket.socket(fileno=os.dup(descriptor)) as line:
        line.sendall(ASK)
        if line.recv(1) != GO:
            raise NotVerifiable("The suite that started this run has ended before it was timed.")
        try:
            yield
        finally:
            line.sendall(OVER)


class Machine:
    """Who is at work: any number of runs, or the only one that times."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._working = 0
        self._waiting = 0
        self._timing = False
        self._present = 0  # all of these, and those that have begun and wait for their turn

    @contextmanager
    def working(self) -> Iterator[None]:
        """Within the block, a run works; it starts when nobody times or waits to time."""
        self._when(lambda: not (self._timing or self._waiting), working=1, present=1)
        try:
            yield
        finally:
            self._change(working=-1, present=-1)

    @contextmanager
    def emptied(self) -> Iterator[None]:
        """Within the block, a run works and there is no other; it may ask for its turn, too."""
        self._change(waiting=1)  # until its end, so that no other begins
        self._when(lambda: not self._present, working=1, present=1)
        try:
            yield
        finally:
            self._change(working=-1, waiting=-1, present=-1)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Within the block, the run that was working is the only one."""
        self._change(working=-1, waiting=1)
        self._when(lambda: not self._timing and not self._working, waiting=-1, timing=True)
        try:
            yield
        finally:
            self._change(working=1, timing=False)

    def _when(
        self, free: Callable[[], bool], *, working: int = 0, waiting: int = 0, present: int = 0,
        timing: bool | None = None,
    ) -> None:  # fmt: skip
        with self._changed:
            self._changed.wait_for(free)
            self._count(working, waiting, present, timing)

    def _change(
        self, *, working: int = 0, waiting: int = 0, present: int = 0, timing: bool | None = None
    ) -> None:
        with self._changed:
            self._count(working, waiting, present, timing)
            self._changed.notify_all()

    def _count(self, working: int, waiting: int, present: int, timing: bool | None) -> None:
        self._working += working
        self._waiting += waiting
        self._present += present
        self._timing = self._timing if timing is None else timing
