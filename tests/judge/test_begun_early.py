"""A judging that begins before its candidate is written says what it would have said later."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fusewright.errors import BadUsage, UnusableProblem
from fusewright.judge import judging
from fusewright.judge.findings import Verdict
from fusewright.judge.isolation.worker_pool import Site
from fusewright.judge.judging import COMPILING, Judging, open_judging
from fusewright.judge.request import Request
from tests.support.folders import CONTROLS, PROBLEMS

GOOD = CONTROLS / "repacks_every_call.py"
SEED = "5a" * 16


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with judging.open_site("cpu", timing=False) as opened:
        yield opened


def asked(candidate: Path, problem: Path = PROBLEMS / "linear_relu.py") -> Request:
    only = ("fresh", "weight-change")
    return Request(problem, candidate, timing=False, seed=SEED, only=only)


def said(verdict: Verdict) -> tuple[object, ...]:
    """All of it that another judging must say, too."""
    counts = verdict.environment["counts"]
    return verdict.verdict, verdict.reason, verdict.checks, verdict.accuracy, counts, verdict.replay


def begun(opened: Judging) -> Judging:
    opened.begin()
    opened.begin()  # once is enough
    return opened


def quiet(_: str) -> None:
    """Progress that nobody watches."""


def test_the_verdict_is_the_same(site: Site, tmp_path: Path) -> None:
    candidate = tmp_path / "candidate.py"
    with open_judging(asked(candidate), site) as opened:
        begun(opened)
        time.sleep(1.0)
        candidate.write_bytes(GOOD.read_bytes())
        early = opened.verdict(quiet, compiled=lambda: None)
    later = judging.judge_request(asked(candidate), quiet, site=site)
    assert {row.outcome for row in early.checks} >= {"pass"}
    assert not early.findings
    assert said(early) == said(later)
    seconds = early.costs["seconds"]
    assert isinstance(seconds, dict)
    assert {COMPILING, "opening the problem", "examining the problem", "self-test"} <= set(seconds)


def test_who_asks_late_is_told_the_phase_that_it_is_in(site: Site, tmp_path: Path) -> None:
    told: list[str] = []
    with open_judging(asked(GOOD), site) as opened:
        begun(opened).verdict(told.append)
    steps = ["opening the problem", "examining the problem", "self-test", "values"]
    phases = [f"judging: {step}" for step in steps]
    assert told == phases[phases.index(told[0]) :]


def test_a_fault_of_the_problem_is_told_with_the_verdict(site: Site, tmp_path: Path) -> None:
    problem = tmp_path / "problem.py"
    problem.write_text("raise ValueError('no problem')\n")
    with open_judging(asked(GOOD, problem), site) as opened:
        begun(opened)
        with pytest.raises(UnusableProblem, match="no problem"):
            opened.verdict(quiet)


def test_a_candidate_that_never_came_is_bad_usage(site: Site, tmp_path: Path) -> None:
    with open_judging(asked(tmp_path / "never.py"), site) as opened:
        begun(opened)
        with pytest.raises(BadUsage, match="no such file"):
            opened.verdict(quiet)


@pytest.mark.parametrize("seconds", [0.0, 0.5, 4.0])
def test_who_wants_no_verdict_any_more_need_not_wait(seconds: float, tmp_path: Path) -> None:
    """On a site of its own, which is closed behind it."""
    before = threading.active_count()
    with open_judging(asked(tmp_path / "never.py")) as opened:
        begun(opened)
        time.sleep(seconds)
        workers, begin = opened.session.workers, time.monotonic()
    assert time.monotonic() - begin < 10.0
    assert threading.active_count() <= before
    assert all(worker.finish(5.0).dead for worker in workers)


def test_a_model_that_cannot_be_fused_ends_as_before(tmp_path: Path) -> None:
    """`optimize` has begun to judge when it finds that it cannot read the model."""
    problem = tmp_path / "problem.py"
    problem.write_text("class Model: pass\n")
    command = [sys.executable, "-m", "fusewright", "optimize", str(problem)]
    done = subprocess.run(
        [*command, "--target", "cpu", "--no-timing"],
        capture_output=True, text=True, timeout=120, cwd=tmp_path, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
