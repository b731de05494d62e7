"""Whatever breaks, a judging ends in time, with a well-formed verdict that is not `verified`."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from fusewright.errors import BadUsage, NotVerifiable, UnusableProblem
from fusewright.judge import canary, judging, sanitizer, session
from fusewright.judge.findings import CHECKS, Ledger, Verdict
from fusewright.judge.isolation import supervisor, tensor_transport
from fusewright.judge.isolation.processes import Worker
from fusewright.judge.isolation.worker_pool import CHECKED, Site
from fusewright.judge.judging import judge_request, replay
from fusewright.judge.request import Limits, Request
from fusewright.judge.session import Session
from fusewright.report.run_report import to_json, verdict_report
from tests.support.folders import PROBLEMS

GOOD = """
import torch
from torch import nn

class ModelNew(nn.Module):
    def __init__(self, width, units):
        super().__init__()
        self.proj = nn.Linear(width, units)

    def forward(self, x):
        {first}
        return torch.relu(x @ self.proj.weight.t() + self.proj.bias)
"""
LIMITS = Limits(import_s=6.0, call_s=6.0, leave_s=5.0)
HANGS = replace(LIMITS, import_s=2.0, call_s=2.0)  # what is late anyhow
STEPS = 17  # answers of the phase that `request` asks for


def request(folder: Path, source: str = "", *, first: str = "pass", **fields: Any) -> Request:
    """A judging of one short phase; `first` is what the candidate does before it answers."""
    path = folder / "candidate.py"
    path.write_text(source or GOOD.format(first=first))
    own = {"timing": False, "limits": LIMITS, "only": ("fresh",), **fields}
    return Request(PROBLEMS / "linear_relu.py", path, **own)


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    """For all judgings in which only a candidate's worker breaks: PyTorch is imported once."""
    with judging.open_site("cpu", timing=False) as opened:
        yield opened


def judged(asked: Request, site: Site | None = None) -> Verdict:
    begin = time.monotonic()
    verdict = judge_request(asked, lambda _: None, site=site)
    assert time.monotonic() - begin < 200
    check_form(verdict)
    return verdict


def check_form(verdict: Verdict) -> None:
    read = json.loads(to_json(verdict_report(verdict)))
    assert read["verdict"] in ("verified", "refuted", "not-verified")
    assert {row["check"] for row in read["checks"]} <= set(CHECKS)
    assert all(row["evidence"] for row in read["checks"])
    for name in ("isolation", "sha256", "torch", "missing tools"):
        assert name in read["environment"]
    assert (verdict.exit_code == 0) == (verdict.verdict == "verified")


def failing(verdict: Verdict) -> set[str]:
    return {row.check for row in verdict.checks if row.outcome == "fail"}


# --- the worker breaks ------------------------------------------------------------------------

BROKEN: Mapping[str, tuple[str, str]] = {
    "hang at import": ("import time\ntime.sleep(600)", "timeout"),
    "hang in a call": (GOOD.format(first="import time; time.sleep(600)"), "timeout"),
    "deaf to signals": (
        GOOD.format(
            first="import signal, time; [signal.signal(s, signal.SIG_IGN) for s in (1, 2, 15)]; "
            "time.sleep(600)"
        ),
        "timeout",
    ),
    "stopped itself": (GOOD.format(first="import os; os.kill(os.getpid(), 19)"), "timeout"),
    "output flood": (
        GOOD.format(first="import os\n        while True: os.write(1, b'y' * 65536)"),
        "resources",
    ),
    "hard exit": (GOOD.format(first="import os; os._exit(0)"), "crash"),
    "segfault": (GOOD.format(first="import ctypes; ctypes.string_at(0)"), "crash"),
    "enormous output": (
        GOOD.replace("return torch.relu(", "return torch.ones(1).expand(1 << 42); (").format(
            first="pass"
        ),
        "crash",
    ),
    "deep recursion": (GOOD.format(first="return self.forward(x)"), "crash"),
    "garbage on every channel": (
        GOOD.format(
            first="import os\n        for fd in range(3, 256):\n            "
            "try: os.write(fd, b'FWJ1' + b'z' * 4096)\n            except OSError: pass"
        ),
        "protocol",
    ),
    "not Python": ("def ModelNew(:", "import"),
    "null bytes": ("ModelNew = '\0'", "import"),
    "no ModelNew": ("x = 1", "import"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_worker_is_refuted_in_time(tmp_path: Path, site: Site, name: str) -> None:
    source, check = BROKEN[name]
    limits = HANGS if check == "timeout" else LIMITS
    verdict = judged(request(tmp_path, source, limits=limits), site)
    assert verdict.verdict == "refuted", verdict.reason
    assert check in failing(verdict)


@pytest.mark.parametrize("step", range(STEPS))
def test_a_worker_killed_at_any_step_is_never_verified(
    tmp_path: Path, site: Site, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """SIGKILL from outside, right before the parent waits for answer number `step`."""
    collect = Session.receive

    def killing(self: Session, worker: Worker, seconds: float) -> Any:
        if worker.name == "first" and self._received.get(worker, -1) + 1 == step:
            for pid in supervisor.descendants(worker.pid)[-1:]:
                os.kill(pid, signal.SIGKILL)
        return collect(self, worker, seconds)

    monkeypatch.setattr(Session, "receive", killing)
    verdict = judged(request(tmp_path), site)
    assert verdict.verdict != "verified"


# --- the judge's own parts break --------------------------------------------------------------


def test_without_the_trusted_worker_nothing_is_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_phases = Session.run_phases

    def killing(self: Session, *rest: Any, **more: Any) -> None:
        os.kill(supervisor.descendants(self.reference.pid)[-1], signal.SIGKILL)
        run_phases(self, *rest, **more)

    monkeypatch.setattr(Session, "run_phases", killing)
    verdict = judged(request(tmp_path))
    assert verdict.verdict == "not-verified"
    assert verdict.exit_code == 3
    assert "SIGKILL" in verdict.reason


def test_without_the_nursery_nothing_is_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_phases = Session.run_phases

    def killing(self: Session, *rest: Any, **more: Any) -> None:
        run_phases(self, *rest, **more)
        nursery = self.site.nursery(CHECKED)
        os.kill(nursery.pid, signal.SIGKILL)
        while nursery.alive():
            time.sleep(0.01)

    monkeypatch.setattr(Session, "run_phases", killing)
    verdict = judged(request(tmp_path))
    assert verdict.verdict == "not-verified"
    assert "starts workers" in verdict.reason


def test_deadlines_are_longer_on_a_busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = os.cpu_count() or 1
    for load, wanted in ((0.0, 1.0), (2.0 * cores, 1.0), (6.0 * cores, 3.0), (1e4 * cores, 10.0)):
        monkeypatch.setattr(os, "getloadavg", lambda load=load: (load, 0.0, 0.0))
        assert session._patience() == wanted


# --- no room ----------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file system of 80 MB, where temporary files go."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=80m,mode=1777", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("only root may mount a file system here")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path) -> None:
    with open(folder / "filler", "wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12):
            with contextlib.suppress(OSError):
                while file.write(bytes(size)) == size:
                    continue


def test_a_disk_that_is_full_at_the_start(tmp_path: Path, small_disk: Path) -> None:
    fill(small_disk)
    with pytest.raises(NotVerifiable, match="TMPDIR"):
        judge_request(request(tmp_path), lambda _: None)
    assert [path.name for path in small_disk.iterdir()] == ["filler"]


def test_a_disk_that_fills_up_on_the_way_refutes_nobody(
    tmp_path: Path, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_phases = Session.run_phases

    def filling(self: Session, *rest: Any, **more: Any) -> None:
        fill(small_disk)
        run_phases(self, *rest, **more)

    monkeypatch.setattr(Session, "run_phases", filling)
    verdict = judged(request(tmp_path))
    assert verdict.verdict == "not-verified", verdict.reason
    assert "TMPDIR" in verdict.reason


# What the shell is told (-f in blocks of 512 bytes, -v in KB) -> the exit code, and what is said:
# 1 MB is nothing, 400 MB is enough here.
@pytest.mark.parametrize(
    ("limit", "code", "said"),
    [
        ("-f 2048", 3, "ulimit"),
        ("-f 800000", 0, "390 MB of memory between"),
        ("-v 20000000", 0, "542 MB of memory between"),
    ],
)
def test_a_limit_on_file_sizes_or_addresses_ends_in_a_report(
    tmp_path: Path, limit: str, code: int, said: str
) -> None:
    asked, report = request(tmp_path), tmp_path / "report.json"
    command = [sys.executable, "-m", "fusewright", "judge", str(asked.problem)]
    command += [str(asked.candidate), "--no-timing", "--report", str(report)]
    limited = ["sh", "-c", f'ulimit {limit}; exec "$@"', "sh", *command]
    ended = subprocess.run(limited, capture_output=True, text=True, check=False, timeout=120)
    assert ended.returncode == code, ended.stderr
    told = json.loads(report.read_text())
    assert told["verdict"] == ("not-verified" if code else "verified")
    assert said in (ended.stderr if code else str(told["environment"]["isolation notes"]))


def test_what_does_not_fit_between_two_processes_is_no_fault_of_the_candidates() -> None:
    with mmap.mmap(-1, 1 << 16) as region:
        tensor_transport.ship_only([torch.zeros(1 << 12)], 0, region)
        with pytest.raises(MemoryError, match="ulimit"):
            tensor_transport.ship_only([torch.zeros(1 << 16)], 0, region)
        with pytest.raises(MemoryError, match="ulimit"):
            tensor_transport.put_results([torch.zeros(1 << 16)], region, "cpu", [])


# --- missing tools -----------------------------------------------------------------------------

BUILT = """
from torch import nn
from torch.utils.cpp_extension import load_inline

load_inline(name="none", cpp_sources=[""])
"""


def test_a_candidate_that_cannot_be_built_here_is_not_refuted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Site, "tool_path", lambda _: str(tmp_path))
    verdict = judged(request(tmp_path, BUILT))
    assert verdict.verdict == "not-verified", verdict.reason
    assert "g++, ninja" in verdict.reason


def test_without_its_tool_a_check_that_was_asked_for_is_a_gap(tmp_path: Path) -> None:
    ledger = Ledger(("sanitize",))
    for name, row in CHECKS.items():
        if row.when == "always":
            ledger.add(name, "pass", "seen")
    site = SimpleNamespace(tool_path=lambda: str(tmp_path))
    sanitizer.check(cast("Session", SimpleNamespace(site=site, ledger=ledger)), 0)
    word, reason = ledger.word()
    assert word == "not-verified"
    assert "sanitizer" in reason


def test_the_first_tool_that_finds_an_error_is_the_last_to_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What writes out of bounds can break the tables of the next tool: that one never ended."""
    found = {"memcheck": "", "racecheck": "3 errors"}
    ran, left = [], []

    def run(session: object, slot: int, worker: str, folder: Path) -> str:
        ran.append(worker)
        return found[worker]

    monkeypatch.setattr(sanitizer, "_start", lambda *a: (a[-1], tmp_path))
    monkeypatch.setattr(sanitizer, "_run", run)
    monkeypatch.setattr(sanitizer.shutil, "which", lambda *_, **__: "compute-sanitizer")
    ledger = Ledger(("sanitize",))
    fake = SimpleNamespace(
        site=SimpleNamespace(tool_path=str), ledger=ledger, progress=print, send_off=left.append,
        part=lambda: None,
    )  # fmt: skip
    sanitizer.check(cast("Session", fake), 0)
    assert ran == ["memcheck", "racecheck"]
    assert left == ["initcheck", "synccheck"]
    assert ledger.failed("sanitizer")


# --- the judge misjudges ----------------------------------------------------------------------


def test_a_judge_that_misjudges_a_canary_refuses_to_judge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = {name: replace(c, honest=True) for name, c in canary.CANARIES.items()}
    monkeypatch.setattr(session, "CANARIES", wrong)
    verdict = judged(request(tmp_path))
    assert verdict.verdict == "not-verified"
    assert "self-test" in verdict.reason


def test_an_unfinished_judging_is_not_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One phase of three: everything that ran passed, and that is not enough."""
    collect, names = Session.receive, []

    def counting(self: Session, worker: Worker, seconds: float) -> Any:
        names.append(worker.name)
        return collect(self, worker, seconds)

    monkeypatch.setattr(Session, "receive", counting)
    verdict = judged(request(tmp_path))
    assert names.count("first") == STEPS, "a worker has to be killed before each of its answers"
    assert verdict.verdict == "not-verified"
    assert not failing(verdict)
    assert "no complete evidence" in verdict.reason


@pytest.mark.parametrize("missing", [name for name, c in CHECKS.items() if c.when == "always"])
def test_no_check_can_be_missing_from_a_verified_verdict(missing: str) -> None:
    ledger = Ledger(())
    for name, check in CHECKS.items():
        ledger.count(name, max(check.fewest - (name == missing), 0))
        if check.when == "always" and name != missing:
            ledger.add(name, "pass", "seen")
    assert ledger.word()[0] == "not-verified"
    ledger.add(missing, "pass", "seen")
    if CHECKS[missing].fewest:
        word, reason = ledger.word()
        assert word == "not-verified"
        assert missing in reason
        ledger.count(missing)
    assert ledger.word()[0] == "verified"
    ledger.add(missing, "fail", "seen")
    expected = "not-verified" if missing == "self-canary" else "refuted"
    assert ledger.word()[0] == expected


# --- bad requests, reports, replays -----------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        lambda r: replace(r, device="tpu"),
        lambda r: replace(r, accuracy="sloppy"),
        lambda r: replace(r, against=("numpy",)),
        lambda r: replace(r, sanitize=True),
        lambda r: replace(r, candidate=Path("/nowhere.py")),
        lambda r: replace(r, overrides={"no_such_constant": "1"}),
    ],
)
def test_bad_usage_is_an_error_and_no_verdict(
    tmp_path: Path, change: Callable[[Request], Request]
) -> None:
    with pytest.raises(BadUsage):
        judge_request(change(request(tmp_path)), lambda _: None)


def test_an_unusable_problem_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "problem.py"
    path.write_text("def get_inputs(): return []")
    with pytest.raises(UnusableProblem):
        judge_request(replace(request(tmp_path), problem=path), lambda _: None)


def test_a_failing_case_is_replayed_bit_for_bit(tmp_path: Path) -> None:
    wrong = GOOD.format(first="pass").replace("self.proj.bias)", "self.proj.bias) + 1e-3 * x[0, 0]")
    verdict = judged(request(tmp_path, wrong))
    assert verdict.verdict == "refuted"
    report = tmp_path / "report.json"
    report.write_text(to_json(verdict_report(verdict)))
    again = replay(report, "0")
    check_form(again)
    told = {f.detail for f in verdict.findings}
    assert told
    assert told == {f.detail for f in again.findings}
    with pytest.raises(BadUsage):
        replay(report, "10000")


def test_the_judges_defaults_are_the_public_ones() -> None:
    assert judging.judge.__kwdefaults__["timing"] is True
    assert judging.judge.__kwdefaults__["accuracy"] == "contract"
