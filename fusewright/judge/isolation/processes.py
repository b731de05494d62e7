"""What the judge wants run -> processes under deadlines, surely dead after.

A `Worker` is one process behind its warden; its `End` always comes within its time, whatever the
worker does. A `Nursery` is a warm process that forks wardens. `site` says who gets which.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fusewright.errors import NotVerifiable
from fusewright.judge.isolation import library_paths, supervisor
from fusewright.judge.isolation.fork_server import MARK
from fusewright.judge.isolation.protocol import Channel, Gone, Late, ProtocolViolation

# Bare packages: a worker imports single files of the judge, not what `fusewright` exports.
_BOOT = f"""{library_paths.PATHS}
import importlib, types
package, program, *arguments = sys.argv[1:]
for name, folder in (("fusewright", package), ("fusewright.judge", package + "/judge")):
    module = sys.modules[name] = types.ModuleType(name)
    module.__path__ = [folder]
importlib.import_module(program).main(arguments)
"""
# Programs of workers.
CANDIDATE = "fusewright.judge.isolation.candidate_worker"
ORACLE = "fusewright.judge.evidence.oracle_worker"
START_S = 90.0
KILL_S = 15.0


@dataclass(frozen=True)
class End:
    """How a worker ended."""

    exit: str  # "exit 0", "SIGSEGV", "killed by the judge: ...", "unknown"
    clean: bool  # exit status 0, without a kill
    reason: str  # why the warden killed it, if it did
    leftovers: tuple[str, ...]
    tail: str
    peak_bytes: int
    dead: bool  # False: it could not be killed
    ran_s: float = 0.0  # since the moment that the order to stop has named
    waited_s: float = 0.0  # the same, for a free core


class Worker:
    def __init__(self, name: str, line: Channel, channel: Channel, mark: str, folder: Path) -> None:
        self.name = name
        self.folder = folder  # its own
        self.channel = channel
        self.nonce = secrets.token_bytes(16)
        self.pid = 0  # of its warden
        self.process: subprocess.Popen[bytes] | None = None  # that, where it is a child of ours
        self.line = line
        self._mark = mark
        self._end: End | None = None
        self._stopped = False

    def finish(self, within_s: float = 10.0) -> End:
        """The program has been told that it may leave: wait for it, then for its warden."""
        if self._end is None:
            self._end = self._collect(time.monotonic() + within_s)
        return self._end if self._end is not None else self.kill("it did not leave")

    def stop(self, why: str, since: float = 0.0) -> None:
        """Order its end, and do not wait for that. since: of which time its record shall tell."""
        if self._end is None and not self._stopped:
            self._stopped = True
            with contextlib.suppress(Gone, Late):  # `kill` does without the warden
                self.line.send_json({"stop": why, "since": since}, time.monotonic() + 1)

    def kill(self, why: str, since: float = 0.0) -> End:
        self.stop(why, since)
        if self._end is None:
            self._end = self._collect(time.monotonic() + KILL_S)
        if self._end is None:
            self._end = self._sweep(why)
        return self._end

    def _collect(self, deadline: float) -> End | None:
        try:
            told = self.line.receive_json(deadline)
        except Late:
            return None
        except (Gone, ProtocolViolation, ValueError):
            return self._sweep("its warden was killed")
        self._close()
        if "failed" in told:
            return End("not started", False, str(told["failed"]), (), "", 0, True)
        leftovers = told["leftovers"]
        assert isinstance(leftovers, list)
        status, reason = told["status"], str(told["reason"])
        name = f"killed: {reason}" if reason else _exit_name(status)
        peak = int(str(told["peak_bytes"]))
        clean = status == 0 and not reason
        ran, waited = (float(str(told[key])) for key in ("ran_s", "waited_s"))
        tail = str(told["tail"])
        return End(name, clean, reason, tuple(leftovers), tail, peak, True, ran, waited)

    def _close(self) -> None:
        self.channel.close()
        self.line.close()
        if self.process is None:
            return
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()

    def _sweep(self, why: str) -> End:
        """Last rung: kill the warden and everything that carries this run's mark."""
        deadline = time.monotonic() + 10
        alive = True
        while alive and time.monotonic() < deadline:
            alive = _kill_marked(self._mark) > 0
            if self.process is not None:
                self.process.poll()
            time.sleep(0.05)
        self.channel.close()
        self.line.close()
        return End(f"killed: {why}", False, why, (), "", 0, not alive)


def _exit_name(status: object) -> str:
    if not isinstance(status, int):
        return "unknown"
    if os.WIFSIGNALED(status):
        return signal.Signals(os.WTERMSIG(status)).name
    return f"exit {os.WEXITSTATUS(status)}"


def _kill_marked(mark: str) -> int:
    found = 0
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if f"{MARK}={mark}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                os.kill(int(entry.name), signal.SIGKILL)
                found += 1
        except OSError:
            continue
    return found


class Nursery:
    """A warm process that forks the workers of one kind of environment.

    shared: a nursery of many sites, which forks this one while it lives; else this one is started.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        log: Path,
        shared: Nursery | None = None,
        program: str = CANDIDATE,
    ) -> None:
        self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._program = program
        self._process: subprocess.Popen[bytes] | None = None
        with theirs:
            own = [theirs.fileno()]
            self._loading = self._used = shared is not None and shared._share(environment, own)
            if not self._used:
                self._process = spawn(
                    command("fusewright.judge.isolation.fork_server", own), environment, log, own
                )
        self.pid = self._process.pid if self._process else self._ask({"do": "answer"}, [], START_S)

    def load(self) -> None:
        """Import PyTorch, once, while the caller goes on."""
        if not self._loading:
            self._loading = True
            self._send({"do": "load", "program": self._program}, [])

    def _share(self, environment: Mapping[str, str], descriptors: Sequence[int]) -> bool:
        """Fork a nursery with this socket; False if that is not possible any more."""
        score = Path("/proc/self/oom_score_adj")
        order = {"do": "nursery", "environment": dict(environment), "killed": score.read_text()}
        with contextlib.suppress(NotVerifiable):
            self.load()
            self._send(order, descriptors)
            return True
        return False

    def fork(self, environment: Mapping[str, str], descriptors: Sequence[int]) -> int:
        """The process id of a new warden that holds these descriptors."""
        self._used = True
        return self._ask({"do": "fork", "environment": dict(environment)}, descriptors, START_S)

    def alive(self) -> bool:
        """Is it there, and not stopped? Then it has what a dead warden left, and has killed it."""
        if self._process and not self._used:
            return self._process.poll() is None
        with contextlib.suppress(NotVerifiable):
            return self._ask({"do": "answer"}, [], KILL_S) == self.pid
        return False

    def _ask(self, order: Mapping[str, object], descriptors: Sequence[int], within_s: float) -> int:
        self._send(order, descriptors)
        self._orders.settimeout(within_s)
        try:
            answer = self._orders.recv(64)
        except OSError as error:
            raise NotVerifiable(
                f"The process that starts workers does not answer: {error}."
            ) from error
        if not answer:
            raise NotVerifiable("The process that starts workers has ended; look for low memory.")
        return int(answer)

    def _send(self, order: Mapping[str, object], descriptors: Sequence[int]) -> None:
        try:
            socket.send_fds(self._orders, [json.dumps(order).encode()], list(descriptors))
        except OSError as error:
            raise NotVerifiable(f"The process that starts workers has ended: {error}.") from error

    def close(self) -> None:
        """It kills all that is left below it, and goes."""
        if self._process and not supervisor.children(self.pid):
            self._process.kill()  # it may be busy with its imports
        self._orders.settimeout(KILL_S)
        try:
            self._orders.shutdown(socket.SHUT_WR)
            while self._orders.recv(64):
                continue
        except TimeoutError:
            os.kill(self.pid, signal.SIGKILL)
        except OSError:  # it has gone before
            pass
        self._orders.close()
        if self._process:
            self._process.wait(KILL_S)


def command(program: str, descriptors: Sequence[int]) -> list[str]:
    """A process of the judge's own, without anything of the caller's Python."""
    paths = library_paths.search(), str(library_paths.PACKAGE)
    return [sys.executable, "-I", "-B", "-c", _BOOT, *paths, program, *map(str, descriptors)]


def spawn(
    arguments: Sequence[str], environment: Mapping[str, str], log: Path, descriptors: Sequence[int]
) -> subprocess.Popen[bytes]:
    with open(log, "ab") as output:
        return subprocess.Popen(
            arguments, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd="/",
            pass_fds=descriptors, env=dict(environment), start_new_session=True,
        )  # fmt: skip
