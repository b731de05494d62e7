"""What a candidate cannot help, or can help too well, decides nothing: slowness, load, memory."""

from __future__ import annotations

import mmap
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fusewright.judge import judging, session, shortage
from fusewright.judge.findings import Ledger, Verdict
from fusewright.judge.isolation import supervisor
from fusewright.judge.isolation.processes import End, Worker
from fusewright.judge.isolation.protocol import Record, Region
from fusewright.judge.isolation.worker_pool import Site
from fusewright.judge.session import Session
from tests.judge.test_chaos import GOOD, LIMITS, judged, request

SLOW = GOOD.format(first="import time; time.sleep(PAUSE)")
WRONG_ON_NAN = (
    "return torch.relu((x @ self.proj.weight.t() + self.proj.bias).nan_to_num(0, 1e9, 0))"
)


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with judging.open_site("cpu", timing=False) as opened:
        yield opened


def evidence(verdict: Verdict, check: str) -> str:
    return next(row.evidence for row in verdict.checks if row.check == check)


def wrong_on_nan(source: str) -> str:
    head, _, _ = source.rpartition("return torch.relu(")
    return head + WRONG_ON_NAN


# --- slowness ---------------------------------------------------------------------------------


def test_a_slow_candidate_is_asked_as_much_as_a_fast_one(tmp_path: Path, site: Site) -> None:
    found: list[Mapping[str, object]] = []
    for pause in ("0.0", "0.1"):
        asked = request(tmp_path, SLOW.replace("PAUSE", pause), only=("hazards",), seed="5a" * 16)
        verdict = judged(asked, site)
        assert not any(row.outcome == "fail" for row in verdict.checks), verdict.reason
        names = ("hazard-values", "hazard-strides", "hazard-shapes")
        found.append({name: evidence(verdict, name) for name in names})
    assert found[0] == found[1]


def test_slowness_hides_nothing(tmp_path: Path, site: Site) -> None:
    source = wrong_on_nan(SLOW.replace("PAUSE", "0.1"))
    verdict = judged(request(tmp_path, source, only=("hazards",)), site)
    assert verdict.verdict == "refuted"
    assert "hazard-values" in verdict.reason


@pytest.mark.parametrize("right", [True, False])
def test_what_is_too_slow_is_neither_verified_nor_refuted_for_it(
    tmp_path: Path, site: Site, right: bool
) -> None:
    source = SLOW.replace("PAUSE", "0.1")
    limits = replace(LIMITS, total_s=1.0)
    asked = request(tmp_path, source if right else wrong_on_nan(source), limits=limits)
    verdict = judged(replace(asked, only=()), site)
    assert verdict.verdict == "not-verified"
    assert verdict.reason.startswith("too slow to judge: ")
    assert not any(row.outcome == "fail" or row.check == "dirty-exit" for row in verdict.checks)


# --- load and memory --------------------------------------------------------------------------

QUICK = replace(LIMITS, pause_s=0.0)
EARLY = 5  # the answer that is lost


def end(exit_: str = "killed: late", **fields: Any) -> End:
    return End(exit_, False, fields.pop("reason", "late"), (), "", 1 << 30, True, **fields)


@pytest.mark.parametrize(
    ("ran", "waited", "starved"),
    [
        (0.0, 0.0, False),  # it sleeps
        (10.0, 0.1, False),  # it spins, and nobody disturbs it
        (2.0, 8.0, True),  # it had a core for a fifth of the time
        (12.0, 40.0, False),  # several threads, and enough time for anything
        (0.1, 0.4, False),  # it slept nearly always
        (6.0, 3.9, True),
    ],
)
def test_only_who_could_not_run_is_excused(ran: float, waited: float, starved: bool) -> None:
    told = shortage.of_time(end(ran_s=ran, waited_s=waited), 10.0, 10.0)
    assert bool(told) == starved
    assert not starved or f"{waited:.1f} s for a free core" in told


@pytest.mark.parametrize(
    ("exit_", "reason", "kills", "short"),
    [
        ("SIGKILL", "", 1, True),
        ("SIGKILL", "", 0, False),  # by its own hand, or somebody else's
        ("SIGSEGV", "", 1, False),
        ("killed: limit", "limit: memory", 1, False),  # by the warden, for what it took
    ],
)
def test_only_the_kernel_kills_for_memory(
    exit_: str, reason: str, kills: int, short: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shortage, "kills", lambda: 7 + kills)
    assert bool(shortage.of_memory(end(exit_, reason=reason), 7)) == short


def lose(
    monkeypatch: pytest.MonkeyPatch, how: str, times: int, attempts: list[str], who: str = "first"
) -> None:
    """This worker has no memory, so many times."""
    collect, started = Session.receive, Session.start_candidate
    if how == "killed":
        monkeypatch.setattr(shortage, "kills", iter(range(1000)).__next__)

    def starting(self: Session, name: str, slot: int, **options: Any) -> Worker:
        attempts.extend([name] if name == who else [])
        return started(self, name, slot, **options)

    def losing(self: Session, worker: Worker, seconds: float) -> Record:
        early = worker.name == who and self._received.get(worker, -1) + 1 == EARLY
        if early and len(attempts) <= times and how == "killed":
            for pid in supervisor.descendants(worker.pid)[-1:]:
                os.kill(pid, signal.SIGKILL)
        record = collect(self, worker, seconds)
        if early and len(attempts) <= times and how == "raised":
            return replace(record, kind="raised", text="refusal: MemoryError: 99 bytes")
        return record

    monkeypatch.setattr(Session, "start_candidate", starting)
    monkeypatch.setattr(Session, "receive", losing)


@pytest.mark.parametrize("how", ["killed", "raised"])
@pytest.mark.parametrize("times", [1, 2])
def test_without_memory_it_is_tried_once_more_and_never_refuted(
    tmp_path: Path, site: Site, monkeypatch: pytest.MonkeyPatch, how: str, times: int
) -> None:
    attempts: list[str] = []
    lose(monkeypatch, how, times, attempts)
    verdict = judged(request(tmp_path, GOOD.format(first="pass"), limits=QUICK), site)
    assert attempts == ["first", "first"]
    assert verdict.verdict == "not-verified"
    assert not any(row.outcome == "fail" for row in verdict.checks), verdict.reason
    if times == 1:  # of the one phase that was asked for, all is there
        assert "no complete evidence" in verdict.reason
        assert evidence(verdict, "values") == "5 fresh draws"
        assert next(row.cases for row in verdict.checks if row.check == "values") == 5
    else:
        assert "are free now; most is held by" in verdict.reason
        assert "tried twice" in verdict.reason


@pytest.mark.parametrize("how", ["killed", "raised"])
def test_a_self_test_without_memory_is_made_once_more(
    tmp_path: Path, site: Site, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    attempts: list[str] = []
    lose(monkeypatch, how, 1, attempts, "canary")
    verdict = judged(request(tmp_path, GOOD.format(first="pass"), limits=QUICK), site)
    assert attempts == ["canary", "canary"]
    assert "no complete evidence" in verdict.reason  # of the one phase that was asked for, all is
    outcomes = {row.check: row.outcome for row in verdict.checks}
    assert outcomes["self-canary"] == outcomes["values"] == "pass"


def test_a_ledger_goes_back_to_where_it_was() -> None:
    ledger = Ledger(())
    ledger.add("values", "pass", "one")
    ledger.count("values", 3)
    before, mark = ledger.rows(), ledger.mark()
    ledger.add("values", "pass", "two")
    ledger.add("accuracy", "pass", "two")
    ledger.count("accuracy")
    ledger.gaps.append("two")
    ledger.back_to(mark)
    assert ledger.rows() == before
    assert not ledger.gaps


def test_beside_busy_neighbours_nobody_is_late(
    tmp_path: Path, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that needs a second of a core, a deadline of two, and five that want each core."""
    monkeypatch.setattr(session, "_patience", lambda: 1.0)
    spin = "import time; t = time.thread_time()\n        while time.thread_time() < t + 1: pass"
    limits = replace(QUICK, call_s=2.0)
    asked = request(tmp_path, GOOD.format(first=spin), limits=limits, only=("grad-mode",))
    cores = os.cpu_count() or 1
    loop = [sys.executable, "-c", "while True: pass"]
    neighbours = [subprocess.Popen(loop) for _ in range(5 * cores)]
    try:
        verdict = judged(asked, site)
    finally:
        for neighbour in neighbours:
            neighbour.kill()
            neighbour.wait()
    assert verdict.verdict == "not-verified"
    assert not any(row.outcome == "fail" for row in verdict.checks), verdict.reason


def test_the_same_twice(tmp_path: Path, site: Site) -> None:
    """Alone and beside busy neighbours: the same word, the same counts, the same cases."""
    told = []
    asked = request(tmp_path, GOOD.format(first="pass"), only=("fresh", "probes"), seed="77" * 16)
    for busy in (0, 2 * (os.cpu_count() or 1)):
        loop = [sys.executable, "-c", "while True: pass"]
        neighbours = [subprocess.Popen(loop) for _ in range(busy)]
        try:
            verdict = judged(asked, site)
        finally:
            for neighbour in neighbours:
                neighbour.kill()
                neighbour.wait()
        cases = [(row.check, row.outcome, row.cases) for row in verdict.checks]
        told.append((verdict.verdict, cases, verdict.replay["counts"], verdict.replay["asked"]))
    assert told[0] == told[1]
    assert dict(told[0][3])["fresh"] == [f"fresh {n}" for n in range(5)]  # type: ignore[call-overload]


MEASURES = {"resident": supervisor._resident, "proportional": supervisor._proportional}


@pytest.mark.parametrize("name", MEASURES)
def test_what_the_judge_lends_is_not_the_candidates_memory(name: str) -> None:
    size, slack = 64 << 20, 16 << 20
    lent, own = Region("lent", size), Region("own", size)

    def used() -> int:
        return supervisor._own_bytes(MEASURES[name], [os.getpid()], [lent.fd])

    before = used()
    with mmap.mmap(lent.fd, size) as theirs, mmap.mmap(own.fd, size) as shared:
        theirs[:] = b"x" * size
        assert used() < before + slack
        shared[:] = b"x" * size
        assert before + size - slack < used() < before + size + slack
        private = bytearray(b"x" * size)
        assert before + 2 * size - slack < used() < before + 2 * size + slack
        del private
    lent.close()
    own.close()
