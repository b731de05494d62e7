"""Several runs on one machine -> many may work at once, but who times calls has it to itself.

So has a run that had too little memory beside others, from its beginning to its end.

A run asks for its turn over a socket before it times anything, and says when it is over:
`hold_timing_lock` in the run, `TimingLock` in the suite that started it. Whoever waits comes before
whoever would start. Once it knows how much memory it will take at most, it waits until there is as
much, which it has until its end: `settle`, likewise.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from types import MappingProxyType

from fusewright.errors import NotVerifiable

ASK, GO, OVER, SETTLE = b"?", b"!", b".", b"+"
NEEDED = struct.Struct("<QQ")  # bytes of the host, and of the run's GPU
HOST = "host"
Turn = Callable[[], AbstractContextManager[None]]  # entered while calls are timed
NO_LIMITS: Mapping[str, int] = MappingProxyType({})


@contextmanager
def hold_timing_lock(descriptor: int) -> Iterator[None]:
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


@dataclass(frozen=True)
class Need:
    """Bytes of the host's memory, and of a GPU's, that a run has at most."""

    host: int
    gpu: int = 0

    def __str__(self) -> str:
        more = f", {self.gpu / 1e9:.1f} GB of the GPU's" if self.gpu else ""
        return f"up to {self.host / 1e9:.1f} GB of memory{more}"


def settle(descriptor: int, need: Need) -> None:
    """Wait until there is so much memory, on the line with this descriptor; it is this run's then.

    Raises NotVerifiable if it can never be.
    """
    os.set_inheritable(descriptor, False)
    with socket.socket(fileno=os.dup(descriptor)) as line:
        line.sendall(SETTLE + NEEDED.pack(need.host, need.gpu))
        if line.recv(1) != GO:
            raise NotVerifiable("The suite that started this run has ended before it was judged.")


@dataclass(frozen=True, eq=False)
class Claim:
    """What a run wants of each memory, in bytes."""

    run: Hashable
    wants: Mapping[str, int]


class TimingLock:
    """Who is at work: any number of runs, or the only one that times; and who has what memory."""

    def __init__(self, limits: Mapping[str, int] = NO_LIMITS) -> None:
        """limits: bytes of each memory that runs may have together, by its name."""
        self._limits = limits
        self._claims: list[Claim] = []  # that wait, the first first
        self._held: dict[Hashable, Mapping[str, int]] = {}
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

    def settle(self, run: Hashable, wants: Mapping[str, int]) -> None:
        """The run, which was working, works on when it has this memory; it keeps it until `leave`.

        First come, first served, for each memory; one that wants more than there is gets it when
        nobody else has any.
        """
        claim = Claim(run, wants)
        with self._changed:
            self._claims.append(claim)
            self._working -= 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._timing and self._is_next(claim))
            self._claims.remove(claim)
            self._held[run] = wants
            self._working += 1
            self._changed.notify_all()

    def leave(self, run: Hashable) -> None:
        """The run has ended, and has no memory any more."""
        with self._changed:
            self._held.pop(run, None)
            self._changed.notify_all()

    def _is_next(self, claim: Claim) -> bool:
        earlier = self._claims[: self._claims.index(claim)]
        awaited = {name for other in earlier for name in other.wants if self._lacks(other, name)}
        return not any(name in awaited or self._lacks(claim, name) for name in claim.wants)

    def _lacks(self, claim: Claim, name: str) -> bool:
        held = sum(wants.get(name, 0) for wants in self._held.values())
        limit = self._limits.get(name)
        return bool(held) and limit is not None and held + claim.wants[name] > limit

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
