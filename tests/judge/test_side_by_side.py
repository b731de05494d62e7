"""Phases that take turns say what they would say one behind the other, and end like those."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fusewright.judge import judging
from fusewright.judge.counts import CONCURRENT_BYTES, MOST_CONCURRENT, concurrency, process_bytes
from fusewright.judge.findings import Verdict
from fusewright.judge.isolation.processes import Worker
from fusewright.judge.isolation.protocol import Record
from fusewright.judge.isolation.worker_pool import Site
from fusewright.judge.request import Request
from fusewright.judge.session import Session
from fusewright.judge.workers import Short
from tests.support.folders import CHEATS, CONTROLS, PROBLEMS

SEED = "5a" * 16
MB = 1 << 20


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with judging.open_site("cpu", timing=False) as opened:
        yield opened


def judged(
    site: Site, candidate: Path, width: int, monkeypatch: pytest.MonkeyPatch, **fields: Any
) -> Verdict:
    """width: processes that are asked side by side."""
    monkeypatch.setattr(Session, "concurrency", property(lambda self: 1 if self.alone else width))
    asked = Request(PROBLEMS / "linear_relu.py", candidate, timing=False, seed=SEED, **fields)
    return judging.judge_request(asked, lambda _: None, site=site)


def said(verdict: Verdict) -> tuple[object, ...]:
    """All that does not depend on clocks and addresses."""
    counts = verdict.environment["counts"]
    rows = [(row.check, row.outcome, row.cases) for row in verdict.checks]
    numbers = verdict.costs["calls"], verdict.costs["bytes sent"], verdict.costs["bytes returned"]
    return verdict.verdict, verdict.reason, rows, counts, verdict.replay, numbers


@pytest.mark.parametrize("candidate", ["repacks_every_call"])
def test_a_verdict_has_the_same_cases_and_the_same_numbers(
    site: Site, candidate: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = CONTROLS / f"{candidate}.py"
    one, three = (judged(site, path, width, monkeypatch) for width in (1, 3))
    assert one.verdict == "verified"
    assert said(one) == said(three)
    assert "first, hazards, states" in three.costs["seconds"]  # type: ignore[operator]


class Log:
    """Which slot is asked what, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun: list[tuple[int, str]] = []
        ask = Session.ask_reference

        def asking(session: Session, **message: Any) -> dict[str, Any]:
            if message["do"] == "begin" and message["lab"] == "problem":
                self.begun.append((message["slot"], message["experiment"]))
            return ask(session, **message)

        monkeypatch.setattr(Session, "ask_reference", asking)


@pytest.mark.parametrize("builds", [False, True])
def test_only_one_process_builds(
    site: Site, builds: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (CONTROLS / "repacks_every_call.py").read_text()
    candidate = tmp_path / "candidate.py"
    candidate.write_text(text + "# load_inline\n" * builds)
    log = Log(monkeypatch)
    assert judged(site, candidate, 3, monkeypatch).verdict == "verified"
    before = log.begun[: log.begun.index((1, "grad-mode"))]
    assert ((2, "setup") in before) == (not builds)
    assert {slot for slot, _ in log.begun} == {1, 2, 3}


def test_what_the_machine_is_too_small_for_is_done_again_in_a_row(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, receive, short = CONTROLS / "repacks_every_call.py", Session.receive, [True]
    alone = said(judged(site, path, 1, monkeypatch))

    def receiving(session: Session, worker: Worker, seconds: float) -> Record:
        if worker.name == "hazards" and session._sent.get(worker, 0) > 20 and short:
            short.pop()
            raise Short("the machine was too small")
        return receive(session, worker, seconds)

    monkeypatch.setattr(Session, "receive", receiving)
    again = judged(site, path, 3, monkeypatch)
    assert not short
    assert said(again)[:5] == alone[:5]
    assert {"first", "hazards", "states"} < set(again.costs["seconds"])  # type: ignore[call-overload]
    assert not [row for row in again.checks if row.check == "dirty-exit"]


def test_what_ends_one_process_for_good_ends_the_others(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    candidate = tmp_path / "candidate.py"
    candidate.write_text("from torch import nn\n\nclass ModelNew(nn.Module):\n    pass\n")
    verdict = judged(site, candidate, 3, monkeypatch)
    assert verdict.verdict == "refuted"
    assert "constructor" in verdict.reason
    assert not [row for row in verdict.checks if row.check == "dirty-exit"]


def test_a_crash_of_one_process_is_found_and_the_others_go_on(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log(monkeypatch)
    verdict = judged(site, CHEATS / "f10_segfault.py", 3, monkeypatch)
    assert verdict.verdict == "refuted"
    assert "crash" in verdict.reason
    assert log.begun


# --- how many ---------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_large_tensors_have_the_machine_to_themselves(device: str) -> None:
    found = [
        concurrency(device, size, 0) for size in (0, MB, 16 * MB, 64 * MB, 256 * MB, 4096 * MB)
    ]
    assert found == sorted(found, reverse=True)
    assert found[:2] == [MOST_CONCURRENT, MOST_CONCURRENT]
    assert found[-1] == 1
    for size in (0, 16 * MB, 64 * MB, 128 * MB):
        for live in (0, 64 * MB, 1024 * MB):
            count = concurrency(device, size, live)
            assert count == 1 or count * process_bytes(size, live) <= CONCURRENT_BYTES[device]
