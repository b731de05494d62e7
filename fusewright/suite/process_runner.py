"""A command -> how it ended: in a process group of its own, within its time.

Whatever one run does (crash, hang, take all memory) ends in its own `RunEnd`. The clock of the time
limit stands still while a run waits for its turn to time. Runs are forked from a process that has
imported PyTorch and knows no problem: that takes a third of a small problem's time.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import platform
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from multiprocessing.process import BaseProcess
from pathlib import Path

from fusewright.common.devices import VISIBLE, free_of, gpus, host_free, kind_of
from fusewright.common.timing_lock import ASK, GO, HOST, NEEDED, NO_LIMITS, SETTLE, TimingLock
from fusewright.suite.run_end import (
    OUT_OF_MEMORY,
    RunEnd,
    ended,
    not_started,
    out_of_time,
    reported,
)
from fusewright.suite.runner import Command, Program, Work

# What every run imports; the last three are for what torch.export does when it is first used.
PRELOAD = (
    "fusewright.cli.main", "fusewright.compiler.pipeline", "torch._dynamo",
    "torch._inductor.sizevars", "fusewright.suite.prewarm",
)  # fmt: skip
SHARE = 0.9  # of the memory that is free when runs begin, for all of them together
LEAVE_S = 10.0  # after it was asked to stop, a run may take this long to tidy up
FIRST_TO_DIE = "500"  # where memory runs out, the kernel takes a run and not the suite
TAIL = 500


class TimeIsUpError(Exception):
    """A run has used its time."""


@dataclass(frozen=True, eq=False)
class RunningProcess:
    """One process at work, and the line on which it asks for its turn."""

    process: BaseProcess
    line: socket.socket

    def wait(self, deadline: float) -> bytes:
        """What it says on its line next; nothing if it has exited."""
        over = self.process.sentinel
        both: list[int | socket.socket] = [over, self.line]
        ready, _, _ = select.select(both, [], [], max(0.0, deadline - time.monotonic()))
        with contextlib.suppress(ConnectionResetError):  # it died before it read its GO
            if self.line in ready and (word := self.line.recv(1)):
                return word
        if not select.select([over], [], [], max(0.0, deadline - time.monotonic()))[0]:
            raise TimeIsUpError
        return b""

    def kill(self) -> None:
        """Ask the whole group to leave, so that it tidies up; then make sure."""
        for number in (signal.SIGINT, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid or 0, number)
            select.select([self.process.sentinel], [], [], LEAVE_S)


class ProcessRunner:
    """Starts runs on this machine, any number at once; a `Runner`."""

    contests = 1  # whoever times has the machine to itself

    def __init__(
        self, work: Work, *, jobs: int = 1, devices: Sequence[str] = (),
        limits: Mapping[str, int] = NO_LIMITS, preload: Sequence[str] | None = None,
    ) -> None:  # fmt: skip
        """devices: GPUs, of which each run gets one.  limits: bytes of the host, and of each GPU,
        that all runs may have together.  preload: modules that are imported once for all runs."""
        self.jobs, self._several = jobs, jobs > 1
        self._program, self._timeout_s, self.output = work.program, work.timeout_s, work.output
        self._runs_on = dict.fromkeys(devices, 0)
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(list(PRELOAD if preload is None else preload))
        self._forking = threading.Lock()  # the bookkeeping of multiprocessing knows no threads
        self._machine = TimingLock(limits)
        self._runs: set[RunningProcess] = set()
        self._stopped = False

    def launch(self, command: Command) -> RunEnd:
        """Run one command to its end and say what came of it.

        What had too little memory beside others is run once more, with nothing of this runner's.
        """
        begin = time.monotonic()
        result = self._result(command, self._machine.working)
        if result.end != OUT_OF_MEMORY or not self._several or self._stopped:
            return result
        again = run_alone(self._result(command, self._machine.emptied))
        return replace(again, seconds=round(time.monotonic() - begin, 1))

    def has(self, _: str, /) -> bool:
        """Results of other machines have other keys."""
        return True

    def _result(self, command: Command, room: Callable[[], AbstractContextManager[None]]) -> RunEnd:
        begin = time.monotonic()
        stem, on = self.output / command.name, ""
        files = [path.absolute() for path in command.files]
        try:
            stem.parent.mkdir(parents=True, exist_ok=True)
            report = Path(f"{stem}.json")
            report.unlink(missing_ok=True)
            Path(f"{stem}.log").write_bytes(b"")
            with room(), self._device() as on:
                late, code = self._run(command.words(files, stem), f"{stem}.log", on)
        except OSError as error:
            return not_started(f"cannot start: {error}", time.monotonic() - begin)
        seconds = round(time.monotonic() - begin, 1)
        said = _last_words(Path(f"{stem}.log"))
        if late:
            found = out_of_time(self._timeout_s, said, seconds)
        else:
            try:
                found = reported(json.loads(report.read_bytes()), code, seconds)
            except (OSError, ValueError):
                found = ended(code, said, seconds)
        return replace(found, node=platform.node(), device=kind_of(on))

    @contextmanager
    def _device(self) -> Iterator[str]:
        """That with the fewest runs is one run's own to see; "" where there is none."""
        with self._forking:
            found = min(self._runs_on, key=self._runs_on.__getitem__, default="")
            if found:
                self._runs_on[found] += 1
        try:
            yield found
        finally:
            with self._forking:
                if found:
                    self._runs_on[found] -= 1

    def stop(self) -> None:
        """Kill what is running; nothing new starts."""
        self._stopped = True
        for run in tuple(self._runs):
            run.kill()

    def _run(self, words: list[str], log: str, device: str) -> tuple[bool, int]:
        """Whether it had to be killed for its time, and its exit code as subprocess gives it."""
        if self._stopped:
            return False, -signal.SIGINT
        ours, theirs = socket.socketpair()
        with ours, theirs:
            told = self._program, words, log, theirs, device
            process = self._context.Process(target=_enter, args=told)
            with self._forking:
                process.start()
            theirs.close()
            with contextlib.suppress(OSError):
                Path(f"/proc/{process.pid}/oom_score_adj").write_text(FIRST_TO_DIE)
            run = RunningProcess(process, ours)
            self._runs.add(run)
            try:
                late = self._watch(run, device)
            finally:
                self._runs.discard(run)
                run.kill()
                self._machine.leave(run)
            with self._forking:
                process.join()
                return late, process.exitcode or 0

    def _watch(self, run: RunningProcess, device: str) -> bool:
        """See it through, with its memory and its turn if it asks; True if its time was up."""
        deadline = time.monotonic() + self._timeout_s
        try:
            while word := run.wait(deadline):
                if word == SETTLE:
                    asked = time.monotonic()
                    host, gpu = NEEDED.unpack(run.line.recv(NEEDED.size, socket.MSG_WAITALL))
                    self._machine.settle(run, {HOST: host} | ({device: gpu} if device else {}))
                    deadline += time.monotonic() - asked
                    with contextlib.suppress(BrokenPipeError):
                        run.line.sendall(GO)
                if word == ASK:
                    asked = time.monotonic()
                    with self._machine.alone():
                        deadline += time.monotonic() - asked
                        with contextlib.suppress(BrokenPipeError):  # it died while it waited
                            run.line.sendall(GO)
                        run.wait(deadline)
        except TimeIsUpError:
            return True
        return False


@dataclass(frozen=True)
class ThisMachine:
    """A `Place`: so many runs at once, with a share of this machine's memory and, where they run on
    GPUs, a GPU for each."""

    jobs: int = 1

    @property
    def machine(self) -> Sequence[str]:
        return (platform.node(), platform.platform())

    @property
    def about(self) -> Mapping[str, object]:
        return {"jobs": self.jobs}

    @contextmanager
    def open(self, work: Work) -> Iterator[ProcessRunner]:
        """The runner; all of its runs have ended after the block."""
        devices = gpus() if work.target != "cpu" else ()
        free = {HOST: host_free(), **free_of(devices)}
        limits = {name: int(SHARE * size) for name, size in free.items()}
        runner = ProcessRunner(work, jobs=self.jobs, devices=devices, limits=limits)
        try:
            yield runner
        finally:
            runner.stop()


HERE = ThisMachine()


def run_alone(again: RunEnd) -> RunEnd:
    """How the second run of what had too little memory ended; it says so if that was no better."""
    if again.end != OUT_OF_MEMORY:
        return again
    why = f"{again.reason.rstrip('.')}. It was run twice, the second time alone."
    return replace(again, reason=why)


def setting_words(overrides: Mapping[str, str]) -> list[str]:
    """Those of a command for constants of a problem file."""
    return [word for name, value in overrides.items() for word in ("--set", f"{name}={value}")]


def _enter(program: Program, words: list[str], log: str, line: socket.socket, device: str) -> None:
    """The first steps of a run: a group of its own, its output in its log, gone with the suite."""
    if device:  # before anything of it has started CUDA
        os.environ[VISIBLE] = device
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    threading.Thread(target=_follow, daemon=True).start()
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    program([*words, "--turn", str(line.fileno())])


def _follow() -> None:
    """End this run if the suite ends, however that happened."""
    suite = multiprocessing.parent_process()
    if suite is not None:
        suite.join()
        os.killpg(0, signal.SIGINT)
        time.sleep(LEAVE_S)
        os.killpg(0, signal.SIGKILL)


def _last_words(log: Path) -> str:
    """The last line that a run wrote."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError:
        return ""
    return next((line.strip()[:TAIL] for line in reversed(lines) if line.strip()), "")
