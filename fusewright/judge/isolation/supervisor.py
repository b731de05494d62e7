"""One worker's guardian: forks it into the sandbox, drains its output, sees that all of it dies.

    parent ── warden ── [init of a pid namespace ──] worker ── whatever the worker starts

The warden runs none of the candidate's code. It is a subreaper, so a daemon that forks twice and
starts a session of its own still ends up below it. It watches memory and the number of processes,
keeps the tail of the output, and writes one record when everything is dead.
"""

from __future__ import annotations

import importlib
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from fusewright.judge.isolation import sandbox
from fusewright.judge.isolation.protocol import Channel, Gone, Late, ProtocolViolation

TAIL_BYTES = 16 * 1024
OUTPUT_LIMIT = 64 << 20
WATCH_S = 0.25
KEPT_LOOKS = 4096  # to tell how a process has spent its time
MOST_TIMED = 64  # processes
GRACE_S = 4.0  # for helpers that end by themselves when the worker is gone
Config = Mapping[str, Any]


@dataclass
class Seen:
    """What the warden has seen; becomes its one record."""

    status: int | None = None  # wait status of the worker
    reason: str = ""  # why the warden killed it, if it did
    output_bytes: int = 0
    peak_bytes: int = 0  # its own: what the judge shares with it does not count
    ran_s: float = 0.0  # since the moment that the parent asks about, of all threads
    waited_s: float = 0.0  # the same, for a free core
    leftovers: list[str] = field(default_factory=list)
    tail: bytes = b""


def main(arguments: Sequence[str | int]) -> None:
    """Descriptors: the line to the parent, then the worker's. Returns in the worker, too."""
    line_fd, *descriptors = map(int, arguments)
    line = Channel(socket.socket(fileno=line_fd))
    config: Config = line.receive_json(time.monotonic() + 30) | {"descriptors": descriptors}
    sandbox.prctl(sandbox.PR_SET_PDEATHSIG, signal.SIGKILL)
    sandbox.prctl(sandbox.PR_SET_CHILD_SUBREAPER, 1)
    plan = sandbox.plan_from(config["plan"])
    output, worker_output = os.pipe()
    status, init_status = os.pipe()
    try:
        sandbox.leave_namespaces(plan)
    except OSError as error:
        line.send_json({"failed": str(error)}, time.monotonic() + 5)
        return
    child = os.fork()
    if child == 0:
        line.close()
        os.close(output)
        os.close(status)
        if plan.namespaces and (worker := os.fork()):
            _be_init(worker, init_status, [*descriptors, worker_output])
        os.close(init_status)
        _be_worker(config, plan, worker_output)
        return
    channel, *regions = descriptors
    for descriptor in (channel, worker_output, init_status):
        os.close(descriptor)
    seen = _guard(line, child, output, status, {**config, "regions": regions})
    record = asdict(seen) | {"tail": seen.tail.decode("utf-8", "replace")}
    line.send_json(record, time.monotonic() + 5)
    os._exit(0)  # tidying up an interpreter that has loaded PyTorch takes a while


def _be_init(worker: int, status_pipe: int, descriptors: list[int]) -> NoReturn:
    """First process of the pid namespace: reaps, reports, and stays until the warden kills it."""
    sandbox.prctl(sandbox.PR_SET_PDEATHSIG, signal.SIGKILL)
    for descriptor in descriptors:
        os.close(descriptor)
    while True:
        try:
            pid, status = os.wait()
        except ChildProcessError:
            time.sleep(0.05)
            continue
        if pid == worker:
            os.write(status_pipe, status.to_bytes(4, "little"))


def _be_worker(config: Config, plan: sandbox.Plan, output: int) -> None:
    """Enter the sandbox, then become the program that the configuration names."""
    os.setsid()
    null = os.open("/dev/null", os.O_RDONLY)
    for source, target in ((null, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    os.close(null)
    os.close(output)
    sandbox.enter(plan, config["folder"])
    importlib.import_module(config["program"]).main(config)


def _guard(line: Channel, child: int, output: int, status: int, config: Config) -> Seen:
    seen = Seen()
    poll = select.poll()
    for descriptor in (line.fileno(), output, status):
        poll.register(descriptor, select.POLLIN)
    looked, times = 0.0, [(time.monotonic(), 0.0, 0.0)]
    while seen.status is None and not seen.reason:
        ready = dict(poll.poll(WATCH_S * 1000))
        if output in ready and not _drain(output, seen):
            poll.unregister(output)
        if line.fileno() in ready:
            seen.reason, since = _order(line)
            _look_back(seen, times, since)
        if time.monotonic() - looked > WATCH_S:
            looked = time.monotonic()
            below = _look(seen, config, child)
            times = [*times[-KEPT_LOOKS:], (looked, *_times(below))]
        seen.status = _ended(child, status, ready, namespaces=config["plan"]["namespaces"])
        if status in ready and seen.status is None:
            poll.unregister(status)
    if not seen.reason:
        seen.leftovers = _survivors(child)
    kill_all()
    while _drain(output, seen) and seen.output_bytes < OUTPUT_LIMIT:
        continue
    return seen


def _ended(child: int, status: int, ready: Mapping[int, int], *, namespaces: bool) -> int | None:
    """The worker's wait status once it is over; from its init where there is one."""
    pid, found = os.waitpid(child, os.WNOHANG)
    if pid:
        return found
    if namespaces and status in ready and (told := os.read(status, 4)):
        return int.from_bytes(told, "little")
    return None


def _order(line: Channel) -> tuple[str, float]:
    """The parent sends nothing but an order to stop, or goes away; since when it wants to know."""
    try:
        told = line.receive_json(time.monotonic() + 1)
        return str(told.get("stop", "stopped")), float(str(told.get("since", 0.0)))
    except (Gone, Late, ProtocolViolation, ValueError):
        return "the judge went away", 0.0


def _look_back(seen: Seen, times: Sequence[tuple[float, float, float]], since: float) -> None:
    """How long all threads have run, and have waited, since then."""
    first = next((look for look in times if look[0] >= since - WATCH_S), times[-1])
    _, ran, waited = (max(0.0, b - a) for a, b in zip(first, times[-1], strict=True))
    seen.ran_s, seen.waited_s = ran, waited


def _times(pids: Iterable[int]) -> tuple[float, float]:
    """Seconds that the threads of these processes have run, and have waited for a core."""
    ran = waited = 0
    for pid in [*pids][:MOST_TIMED]:
        for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            try:
                words = path.read_text().split()
            except OSError:  # it has ended
                continue
            ran, waited = ran + int(words[0]), waited + int(words[1])
    return ran * 1e-9, waited * 1e-9


def _drain(output: int, seen: Seen) -> bool:
    if not select.select([output], [], [], 0)[0]:
        return False
    part = os.read(output, 1 << 16)
    seen.output_bytes += len(part)
    seen.tail = (seen.tail + part)[-TAIL_BYTES:]
    return bool(part)


def _look(seen: Seen, config: Config, child: int) -> list[int]:
    """Is anything beyond its limit? Returns the processes below."""
    below = descendants(os.getpid())
    if config["plan"]["namespaces"]:  # the child is the init of the namespace: our own code
        below = [pid for pid in below if pid != child]
    used = _own_bytes(_resident, below, config["regions"])
    if used > config["memory_bytes"]:  # forks share pages; what they share is counted once
        used = _own_bytes(_proportional, below, config["regions"])
    seen.peak_bytes = max(seen.peak_bytes, used)
    limits = (
        ("memory", seen.peak_bytes, config["memory_bytes"]),
        ("processes", len(below), config["processes"]),
        ("output", seen.output_bytes, OUTPUT_LIMIT),
    )
    for name, found, limit in limits:
        if found > limit:
            seen.reason = f"limit: {name} {found} of {limit}"
    return below


def descendants(pid: int) -> list[int]:
    """Every process below `pid`, without `pid`."""
    found: list[int] = []
    waiting = [pid]
    while waiting:
        new = [c for c in children(waiting.pop()) if c not in found]
        found += new
        waiting += new
    return found


def children(pid: int) -> list[int]:
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
    found: list[int] = []
    for thread in threads:
        try:
            text = Path(f"/proc/{pid}/task/{thread}/children").read_text()
        except OSError:
            continue
        found += map(int, text.split())
    return found


def _fields(pid: int) -> list[str]:
    """Of /proc/pid/stat: name first, then state, parent, ...; empty if the process is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return []
    name, _, rest = text.partition("(")[2].rpartition(")")
    return [name, *rest.split()]


def _own_bytes(
    measure: Callable[[int], tuple[int, int]], pids: Sequence[int], regions: Sequence[int]
) -> int:
    """What processes have for themselves; of shared memory, what is not the judge's regions.

    Pages of files can be had again at any time, and libraries are everybody's.
    """
    lent = sum(os.fstat(region).st_blocks * 512 for region in regions)
    return sum(own + max(0, shared - lent) for own, shared in map(measure, pids))


def _resident(pid: int) -> tuple[int, int]:
    """Bytes of a process: its own, and of shared memory."""
    sizes = _sizes(Path(f"/proc/{pid}/status"))
    return sizes.get("RssAnon", 0), sizes.get("RssShmem", 0)


def _proportional(pid: int) -> tuple[int, int]:
    """The same, each page divided by its users; finding that out takes a while."""
    sizes = _sizes(Path(f"/proc/{pid}/smaps_rollup"))
    return (sizes["Pss_Anon"], _resident(pid)[1]) if "Pss_Anon" in sizes else _resident(pid)


def _sizes(path: Path) -> dict[str, int]:
    """The lines of such a file that are numbers of kilobytes, in bytes."""
    try:
        lines = [line.split() for line in path.read_text(errors="replace").splitlines()]
    except OSError:  # the process is gone
        return {}
    return {words[0][:-1]: int(words[1]) << 10 for words in lines if words[2:] == ["kB"]}


def _survivors(init: int) -> list[str]:
    """Names of processes that outlive the worker by more than the grace."""
    until = time.monotonic() + GRACE_S
    while True:
        alive = [f for p in descendants(os.getpid()) if p != init and (f := _fields(p))]
        names = [f[0] for f in alive if f[1] not in "ZX"]
        if not names or time.monotonic() > until:
            return names[:20]
        time.sleep(0.02)


def kill(pids: Iterable[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def kill_all() -> None:
    """Kill until nothing is below; new children of the dying come to this process too."""
    until = time.monotonic() + 10
    while time.monotonic() < until:
        kill(descendants(os.getpid()))
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                continue
        except ChildProcessError:
            return
        time.sleep(0.005)
