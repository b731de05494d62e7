"""Orders on a socket -> a warm process forked for each: importing PyTorch once serves all workers.

    parent ── nursery ──┬── warden ── [init ──] worker        one fork an order
                        └── warden ── [init ──] worker
    suite ── shared nursery ──┬── nursery ── ...              one fork a judging
                              └── nursery ── ...

It loads PyTorch and one program of the judge's own, nothing of a candidate or a problem, and
touches no device. Each order brings the worker's descriptors and its environment; what a
process reads only when it starts is made good after the fork: the mark in its environment block,
glibc's allocator, and nothing of the nursery's own stays open. It is a subreaper: what outlives a
warden that was killed comes to it, and is killed here. When the parent goes away, all of it dies.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import signal
import socket
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from fusewright.judge.isolation import sandbox, supervisor

MARK = "FUSEWRIGHT_RUN"  # in a process's first environment, where the kernel shows it to others
MARK_LENGTH = 32
MOST_BYTES = 1 << 16  # of an order
MOST_DESCRIPTORS = 64
# glibc reads these when a process starts; afterwards it has to be told.
_MALLOC = {"MALLOC_PERTURB_": -6}


def main(arguments: Sequence[str | int]) -> None:
    """argv: the socket of the orders. Returns in every worker when its program is over."""
    orders = socket.socket(fileno=int(arguments[0]))
    sandbox.prctl(sandbox.PR_SET_CHILD_SUBREAPER, 1)
    sandbox.prctl(sandbox.PR_SET_DUMPABLE, 0)
    wardens: set[int] = set()
    signal.signal(signal.SIGCHLD, lambda *_: _bury(wardens))
    while True:
        body, descriptors, _, _ = socket.recv_fds(orders, MOST_BYTES, MOST_DESCRIPTORS)
        if not body:
            break  # the parent is gone, or has no more orders
        order = json.loads(body)
        if order["do"] == "load":
            importlib.import_module(order["program"])
            gc.freeze()  # the collector of a child would touch, and so copy, all of it
            continue
        if order["do"] == "answer":
            orders.send(str(os.getpid()).encode())
            continue
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGCHLD,))
        pid = os.fork()
        if not pid:
            orders.close()
            _become(order, descriptors)
            if order["do"] == "nursery":
                _die_like(order["killed"])
                main(descriptors)
            else:
                supervisor.main(descriptors)
            return
        wardens.add(pid)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGCHLD,))
        for descriptor in descriptors:
            os.close(descriptor)
        if order["do"] == "fork":  # a nursery is asked itself: many wait for theirs
            with contextlib.suppress(OSError):  # the next receive tells that the parent is gone
                orders.send(str(pid).encode())
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    supervisor.kill_all()
    os._exit(0)  # tidying up an interpreter that has loaded PyTorch takes a while


def _bury(wardens: set[int]) -> None:
    """Reap the dead; a child that is no warden has lost its own, and is killed with all below."""
    try:
        while pid := os.waitpid(-1, os.WNOHANG)[0]:
            wardens.discard(pid)
    except ChildProcessError:
        return
    for child in supervisor.children(os.getpid()):
        if child not in wardens:
            supervisor.kill((child, *supervisor.descendants(child)))  # its end calls this again


def _become(order: Mapping[str, Any], descriptors: Sequence[int]) -> None:
    """In the child: like a process that was started by exec with this environment."""
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGCHLD,))
    _close_all_but((0, 1, 2, *descriptors))
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    _show_mark(order["environment"][MARK])
    os.environ.clear()
    os.environ.update(order["environment"])
    for name, option in _MALLOC.items():
        sandbox.libc.mallopt(option, int(order["environment"].get(name, 0)))
    sandbox.prctl(sandbox.PR_SET_DUMPABLE, 1)


def _die_like(score: str) -> None:
    """Where memory runs out, the kernel chooses among the workers of this one as it would have."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(score)


def _close_all_but(kept: Sequence[int]) -> None:
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            try:
                os.close(int(name))
            except OSError:  # the one that listed this folder
                continue


def _show_mark(mark: str) -> None:
    """Write it over the nursery's own, in the memory that /proc/PID/environ shows to others."""
    place = _place()
    if not place or len(ctypes.string_at(place)) != len(mark):
        raise RuntimeError(f"this process was started without {MARK}, or its form has changed")
    ctypes.memmove(place, mark.encode(), len(mark))


@cache
def _place() -> int | None:
    """Of the mark, before any change of the environment; a fork of a fork has it from the first."""
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_void_p
    found: int | None = getenv(MARK.encode())
    return found
