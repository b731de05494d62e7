"""Workers die: hung, stopped, flooding, forking, with their daemons, and with their judge."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from fusewright.errors import NotVerifiable
from fusewright.judge.isolation import processes, sandbox, supervisor, worker_pool
from fusewright.judge.isolation.fork_server import MARK_LENGTH
from fusewright.judge.isolation.processes import Worker
from fusewright.judge.isolation.protocol import RECORD_LIMIT, REGION_BYTES, Region, decode_record
from fusewright.judge.isolation.worker_pool import CHECKED, Site, open_site
from tests.support.folders import ROOT

DAEMON = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for fd in range(3, 64):
            try: os.close(fd)
            except OSError: pass
        os.execv("/bin/sleep", ["sleep", "{seconds}"])
    os._exit(0)
time.sleep(0.3)
ModelNew = object
"""


@contextmanager
def isolated(how: str) -> Iterator[Site]:
    """The strongest isolation of this machine, with a nursery of its own; or none, and a shared."""
    with pytest.MonkeyPatch.context() as patch:
        if how == "best":
            patch.setattr(worker_pool, "SHARED", {})
        if how == "plain":
            every = sandbox.candidates_for
            patch.setattr(sandbox, "candidates_for", lambda **kw: every(**kw)[-1:])
        with open_site("cpu") as opened:
            yield opened


@pytest.fixture(scope="module", params=["best", "plain"])
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    """For all tests that leave its nursery as it is."""
    with isolated(request.param) as opened:
        yield opened


@pytest.fixture(params=["best", "plain"])
def own_site(request: pytest.FixtureRequest) -> Iterator[Site]:
    with isolated(request.param) as opened:
        yield opened


def start(site: Site, environment: Mapping[str, str] = CHECKED, generation: int = 0) -> Worker:
    return site.start(
        "tested", "fusewright.judge.isolation.candidate_worker", options={"device": "cpu"},
        regions=((Region("in", 1 << 20), Region("out", 1 << 20)),), environment=environment,
        generation=generation,
    )  # fmt: skip


def answer(worker: Worker, number: int, seconds: float = 60.0) -> str:
    body = worker.channel.receive(time.monotonic() + seconds, RECORD_LIMIT)
    return decode_record(body, nonce=worker.nonce, sequence=number, region_bytes=REGION_BYTES).kind


def run_source(worker: Worker, source: str) -> None:
    message = {"do": "import", "source": source, "name": "c", "class": "ModelNew", "threads": 1}
    worker.channel.send_json({**message, "sequence": 1}, time.monotonic() + 5)


def said(site: Site, source: str) -> str:
    """What a worker of its own printed while it imported `source`."""
    worker = start(site)
    assert answer(worker, 0) == "ready"
    run_source(worker, source + "\nModelNew = object")
    assert answer(worker, 1) == "done", worker.kill("over").tail
    worker.channel.send_json({"do": "leave", "sequence": 2}, time.monotonic() + 5)
    end = worker.finish(20)
    assert end.clean
    return end.tail.strip()


def processes_called(argument: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and argument.encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def test_a_double_forked_daemon_is_reported_and_dies(site: Site) -> None:
    seconds = f"9{os.getpid()}.{time.time_ns() % 10**6}"
    worker = start(site)
    assert answer(worker, 0) == "ready"
    run_source(worker, DAEMON.format(seconds=seconds))
    assert answer(worker, 1) == "done"
    assert processes_called(seconds)
    worker.channel.send_json({"do": "leave", "sequence": 2}, time.monotonic() + 5)
    end = worker.finish(20)
    assert "sleep" in end.leftovers
    assert end.dead
    assert not processes_called(seconds)


def test_a_hung_worker_is_killed_with_its_daemon(site: Site) -> None:
    seconds = f"8{os.getpid()}.{time.time_ns() % 10**6}"
    worker = start(site)
    assert answer(worker, 0) == "ready"
    run_source(worker, DAEMON.format(seconds=seconds) + "\nwhile True: time.sleep(1)")
    time.sleep(1.0)
    begin = time.monotonic()
    end = worker.kill("it hangs")
    assert end.dead
    assert "it hangs" in end.exit
    assert time.monotonic() - begin < processes.KILL_S
    assert not processes_called(seconds)


def test_a_worker_without_its_warden_is_swept_up(site: Site) -> None:
    worker = start(site)
    assert answer(worker, 0) == "ready"
    below = supervisor.descendants(worker.pid)
    os.kill(worker.pid, signal.SIGKILL)
    end = worker.finish(10)
    assert not end.clean
    assert end.dead
    deadline = time.monotonic() + 5
    while any(Path(f"/proc/{pid}").exists() for pid in below) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(Path(f"/proc/{pid}").exists() for pid in below)


def test_a_daemon_without_a_mark_does_not_outlive_its_warden(site: Site) -> None:
    """Its environment is empty and it is nobody's child: the nursery gets it, and kills it."""
    seconds = f"7{os.getpid()}.{time.time_ns() % 10**6}"
    worker = start(site)
    assert answer(worker, 0) == "ready"
    bare = DAEMON.format(seconds=seconds).replace("execv(", "execve(").replace('"])', '"], {})')
    run_source(worker, bare)
    assert answer(worker, 1) == "done"
    assert processes_called(seconds)
    os.kill(worker.pid, signal.SIGKILL)
    assert worker.finish(10).dead
    deadline = time.monotonic() + 5
    while processes_called(seconds) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not processes_called(seconds)


def test_a_site_that_lost_its_nursery_says_so(
    own_site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = start(own_site)
    assert answer(worker, 0) == "ready"
    assert not own_site.lost()
    nursery = own_site.nursery(CHECKED)
    with monkeypatch.context() as patch:  # one that was stopped is lost, too
        patch.setattr(processes, "KILL_S", 1.0)
        os.kill(nursery.pid, signal.SIGSTOP)
        assert own_site.lost()
    os.kill(nursery.pid, signal.SIGKILL)
    end = worker.finish(20)
    assert not end.clean
    assert own_site.lost()
    with pytest.raises(NotVerifiable, match="starts workers"):
        start(own_site)


def test_generations_have_nurseries_of_their_own(own_site: Site) -> None:
    """As often as anybody asks: a timing that was unclear is made again on the same site."""
    first, pids = own_site.nursery(CHECKED), set[int]()
    for _ in range(2):
        for generation in (1, 2):
            own_site.retire()
            assert not any(own for _, own in own_site.nurseries)
            assert own_site.nursery(CHECKED) is first
            nursery = own_site.nursery(CHECKED, generation)
            assert own_site.nursery(CHECKED, generation) is nursery
            worker = start(own_site, CHECKED, generation)
            assert answer(worker, 0) == "ready"
            assert worker.pid in supervisor.children(nursery.pid)
            pids.add(nursery.pid)
            worker.kill("it is over")
    assert len(pids | {first.pid}) == 5


def test_a_worker_under_a_launcher_is_started_by_exec(site: Site) -> None:
    worker = site.start(
        "tested", "fusewright.judge.isolation.candidate_worker", options={"device": "cpu"},
        regions=((Region("in", 1 << 20), Region("out", 1 << 20)),), launcher=("env", "LAUNCHED=1"),
        plan=sandbox.Plan(0),
    )  # fmt: skip
    assert answer(worker, 0) == "ready"
    assert all(worker.pid not in supervisor.children(n.pid) for n in site.nurseries.values())
    run_source(worker, "import os; print(os.environ['LAUNCHED'])\nModelNew = object")
    assert answer(worker, 1) == "done"
    worker.channel.send_json({"do": "leave", "sequence": 2}, time.monotonic() + 5)
    end = worker.finish(20)
    assert end.clean
    assert end.tail.strip() == "1"


# --- nurseries of many sites ------------------------------------------------------------------


def test_sites_that_share_have_nurseries_of_their_own() -> None:
    shared = worker_pool.SHARED[frozenset(CHECKED)]
    with open_site("cpu") as first, open_site("cpu") as second:
        pids = {site.nursery(CHECKED).pid for site in (first, second)}
        assert len(pids) == 2
        assert pids <= set(supervisor.children(shared.pid))
        assert first.reference.pid not in supervisor.descendants(shared.pid)
        worker, other = start(first), start(second)
        assert answer(worker, 0) == answer(other, 0) == "ready"
        os.kill(first.nursery(CHECKED).pid, signal.SIGKILL)
        assert not worker.finish(20).clean
        assert first.lost()
        assert not second.lost()
        run_source(other, "ModelNew = object")
        assert answer(other, 1) == "done"
    assert not pids & set(supervisor.children(shared.pid))


def test_a_site_does_without_what_was_shared_and_died(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_pool, "SHARED", {})
    worker_pool.share((CHECKED,))
    for shared in worker_pool.SHARED.values():
        os.kill(shared.pid, signal.SIGKILL)
        while shared.alive():
            time.sleep(0.01)
    with open_site("cpu") as site:
        assert answer(start(site), 0) == "ready"
        assert site.reference.pid in supervisor.children(site.nursery(worker_pool._TRUSTED).pid)


def test_a_nursery_is_as_likely_to_be_killed_for_memory_as_who_asked_for_it() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    environment = {processes.MARK: secrets.token_hex(MARK_LENGTH // 2)}
    order = {"do": "nursery", "environment": environment, "killed": "321"}
    with ours:
        with theirs:
            worker_pool.SHARED[frozenset(CHECKED)]._send(order, [theirs.fileno()])
        ours.send(b'{"do": "answer"}')
        pid = int(ours.recv(64))
        assert Path(f"/proc/{pid}/oom_score_adj").read_text().strip() == "321"


# --- what a fork must not hand on -------------------------------------------------------------


def test_workers_draw_different_numbers(site: Site) -> None:
    source = (
        "import random, numpy, torch\nprint(random.random(), numpy.random.rand(), torch.rand(1))"
    )
    drawn = [said(site, source).split() for _ in range(2)]
    assert all(a != b for a, b in zip(*drawn, strict=True))


def test_a_worker_has_its_own_environment_and_mark(site: Site) -> None:
    told = [said(site, "import os; print(os.environ['HOME'], os.getcwd())") for _ in range(2)]
    homes = [line.split() for line in told]
    assert all(home == folder for home, folder in homes)
    assert homes[0] != homes[1]
    first, second = start(site), start(site)
    for worker in (first, second):
        assert answer(worker, 0) == "ready"
        assert str(worker.pid) in _marked(worker._mark)
    assert not set(_marked(first._mark)) & set(_marked(second._mark))
    assert all(worker.kill("over").dead for worker in (first, second))


def test_a_worker_holds_nothing_of_the_nursery(site: Site) -> None:
    """Its standard streams, its channel, its two regions (mapping one doubles it); no device."""
    source = (
        "import os, torch\n"
        "kinds = sorted(os.readlink(f'/proc/self/fd/{n}').split(':')[0].split(' ')[0] "
        "for n in os.listdir('/proc/self/fd') if os.path.exists(f'/proc/self/fd/{n}'))\n"
        "print(kinds, torch.cuda.is_initialized())"
    )
    told = said(site, source)
    assert told.count("socket") == 1, told
    assert told.count("memfd") == 4, told
    assert told.count("pipe") == 2, told
    assert told.endswith("] False")


def test_fresh_memory_is_not_zero_and_differs_between_workers(site: Site) -> None:
    """glibc reads its environment when a process starts; the fork has to tell it again."""
    source = "import torch; print(sorted(set(torch.empty(40_000, dtype=torch.uint8).tolist())))"
    for poison in (0x21, 0x84):
        worker = start(site, CHECKED | {"MALLOC_PERTURB_": str(poison)})
        assert answer(worker, 0) == "ready"
        run_source(worker, source + "\nModelNew = object")
        assert answer(worker, 1) == "done"
        worker.channel.send_json({"do": "leave", "sequence": 2}, time.monotonic() + 5)
        assert worker.finish(20).tail.strip() == f"[{poison ^ 0xFF}]"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import os\nwhile True: os.write(1, b'x' * 65536)", "output"),
        ("x = []\nwhile True: x.append(bytearray(1 << 24))", "memory"),
    ],
)
def test_limits_end_a_worker_and_say_which(
    site: Site, monkeypatch: pytest.MonkeyPatch, source: str, reason: str
) -> None:
    monkeypatch.setattr(worker_pool, "memory_bytes", lambda: 2 << 30)
    worker = start(site)
    assert answer(worker, 0) == "ready"
    run_source(worker, source)
    end = worker.finish(40)
    assert end.reason.startswith(f"limit: {reason}")
    assert end.dead


def test_a_signal_is_named(site: Site) -> None:
    worker = start(site)
    assert answer(worker, 0) == "ready"
    run_source(worker, "import ctypes; ctypes.string_at(0)")
    assert worker.finish(20).exit == "SIGSEGV"


def test_the_tail_of_the_output_is_kept(site: Site) -> None:
    worker = start(site)
    assert answer(worker, 0) == "ready"
    run_source(worker, "print('last words', flush=True)\nimport os; os._exit(7)")
    end = worker.finish(20)
    assert end.exit == "exit 7"
    assert "last words" in end.tail


def test_workers_die_with_their_judge(tmp_path: Path) -> None:
    script = tmp_path / "judge.py"
    script.write_text(
        "import sys, time\n"
        f"sys.path.insert(0, {str(ROOT)!r})\n"
        "from fusewright.judge.isolation.worker_pool import open_site\n"
        "from fusewright.judge.isolation.protocol import Region\n"
        "with open_site('cpu') as site:\n"
        "    regions = ((Region('i', 4096), Region('o', 4096)),)\n"
        "    program = 'fusewright.judge.isolation.candidate_worker'\n"
        "    w = site.start('orphan', program, options={'device': 'cpu'}, regions=regions)\n"
        "    print(w._mark, flush=True)\n"
        "    time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE) as judge:
        assert judge.stdout is not None
        mark = judge.stdout.readline().decode().strip()
        time.sleep(1.0)
        assert _marked(mark)
        judge.kill()
    deadline = time.monotonic() + 10
    while _marked(mark) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not _marked(mark)


def _marked(mark: str) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and mark.encode() in (entry / "environ").read_bytes():
                found.append(entry.name)
        except OSError:
            continue
    return found
