"""The suite: every way in which a problem can end is its own row, and nothing is done twice."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import pytest

from fusewright.cli import main
from fusewright.common.devices import gpus
from fusewright.common.timing_lock import TimingLock
from fusewright.judge import judge
from fusewright.judge.timing.bench import FEWEST_PROCESSES
from fusewright.report.speed import SpeedRatio
from fusewright.suite import process_runner
from fusewright.suite.results_db import ResultsDb
from fusewright.suite.row import SuiteRow, kept_row, totals
from fusewright.suite.run_all import SuiteOptions
from tests.support.folders import PROBLEMS, ROOT
from tests.support.suite_stand_in import stand_in as stand_in_for_optimize

TINY = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def forward(self, x):
        {forward}

def get_inputs():
    return [torch.randn({size}, 8)]

def get_init_inputs():
    return []
"""
EVENTS = ("start", "asked", "turn", "back", "end")
CRASHES = "import ctypes; ctypes.string_at(0)"


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main, "one_run", stand_in_for_optimize)
    monkeypatch.setattr(process_runner, "LEAVE_S", 1.0)


def folder(tmp_path: Path, **behaviours: str) -> Path:
    """A folder with a problem file for each name; what it does stands in its first line."""
    place = tmp_path / "problems"
    for name, behaviour in behaviours.items():
        path = place / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# {behaviour}\n# {name}\n")
    return place


def run(place: Path, *arguments: str) -> tuple[int, dict[str, dict[str, object]]]:
    """The exit code and the rows of the report."""
    report = place.parent / "report.json"
    words = ["suite", str(place), "--output", str(place.parent / "out"), "--report", str(report)]
    with pytest.raises(SystemExit) as end:
        main.app([*words, *arguments], prog_name="fusewright")
    assert isinstance(end.value.code, int)
    return end.value.code, {row["name"]: row for row in json.loads(report.read_bytes())["rows"]}


def journal(place: Path, event: str = "start") -> list[tuple[str, float]]:
    """Name and time of every event of this kind."""
    lines = (line.split() for line in (place.parent / "journal").read_text().splitlines())
    return [(name, float(at)) for found, name, at in lines if found == event]


def alive(pid: int) -> bool:
    """Whether it runs; a dead process that nobody has asked about does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


ENDS = {
    "good": ("verified", ""),
    "refuted": ("refuted", ""),
    "unusable": ("not-verified", "unusable"),
    "memory": ("not-verified", "out of memory"),
    "killed": ("not-verified", "out of memory"),
    "crash": ("not-verified", "crashed"),
    "desert": ("not-verified", "crashed"),
    "silent": ("not-verified", "crashed"),
    "full": ("not-verified", "disk full"),
    "hang": ("not-verified", "time limit"),
}


@pytest.mark.slow
@pytest.mark.usefixtures("stand_in")
def test_every_end_is_a_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = folder(tmp_path, **{name: name for name in ENDS})
    code, rows = run(place, "--timeout", "3", "--jobs", "3")
    assert code == 1, "one is refuted"
    assert {name: (row["verdict"], row["end"]) for name, row in rows.items()} == ENDS
    assert "SIGSEGV" in str(rows["crash"]["reason"])
    assert "SIGSEGV" in str(rows["desert"]["reason"])
    assert "about to hang" in str(rows["hang"]["reason"])
    child = int((tmp_path / "out" / "hang.child").read_text())
    assert not alive(child), "the whole group must be gone"
    said = capsys.readouterr().out
    assert "10 problems: 1 verified, 1 refuted, 8 not verified" in said
    assert all(re.search(rf"^{name} ", said, re.MULTILINE) for name in ENDS), "a row that wraps"


@pytest.mark.slow
@pytest.mark.usefixtures("stand_in")
def test_what_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A table that fits, one line, or the report alone; with -v, all columns."""
    place = folder(tmp_path, good="good", refuted="refuted")
    run(place)
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["problem", "verdict", "ours", "ratio"]
    assert all(len(row) <= 80 for row in [head, *rows[:2]]), "the table"
    assert "against eager: geometric mean 2.000x" in "\n".join(rows)
    run(place, "--resume", "-q")
    assert capsys.readouterr().out == "2 problems: 1 verified, 1 refuted, 0 not verified\n"
    run(place, "--resume", "-v")
    assert "roofline" in capsys.readouterr().out.splitlines()[0]
    run(place, "--resume", "--json")
    report = json.loads(capsys.readouterr().out)
    assert report == json.loads((tmp_path / "report.json").read_bytes())
    assert report["totals"]["verified"] == 1


def test_the_seed_is_that_of_every_run(tmp_path: Path) -> None:
    words = SuiteOptions(seed=5).words([tmp_path / "p.py"], tmp_path / "p")
    assert words[words.index("--seed") + 1] == "5"
    assert "--verbose" in words, "its log has all"


@pytest.mark.slow
@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize(
    ("behaviours", "code"),
    [(("good",), 0), (("good", "crash"), 3), (("unusable",), 3), (("refuted", "crash"), 1)],
)
def test_exit_codes(tmp_path: Path, behaviours: tuple[str, ...], code: int) -> None:
    place = folder(tmp_path, **{name: name for name in behaviours})
    assert run(place, "--no-timing")[0] == code


@pytest.mark.slow
@pytest.mark.parametrize("what", ["empty", "absent", "hidden", "a file"])
def test_nothing_to_do_is_an_error(
    tmp_path: Path, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "problems"
    if what != "absent":
        place.mkdir()
    if what == "hidden":
        (place / "__init__.py").write_text("")
    if what == "a file":
        place = place / "one.py"
        place.write_text("# good\n")
    with pytest.raises(SystemExit) as end:
        main.app(["suite", str(place), "--output", str(tmp_path / "out")], prog_name="fusewright")
    assert end.value.code == 2
    assert str(place) in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.usefixtures("stand_in")
def test_resume_does_nothing_twice(tmp_path: Path) -> None:
    place = folder(tmp_path, first="good", second="refuted", third="good")
    before = run(place, "--no-timing")
    assert run(place, "--no-timing", "--resume") == before
    assert len(journal(place)) == 3
    (place / "third.py").write_text("# good\n# changed\n")
    run(place, "--no-timing", "--resume")
    assert [name for name, _ in journal(place)][3:] == ["third"]
    run(place, "--no-timing", "--resume", "--set", "rows=3")
    assert len(journal(place)) == 7, "other options are another question"
    run(place, "--no-timing")
    assert len(journal(place)) == 10, "without --resume everything is run"


@pytest.mark.usefixtures("stand_in")
def test_the_page_leads_to_a_page_of_each_problem(tmp_path: Path) -> None:
    """However its run has ended, and also where --resume runs nothing."""
    ends = {"good": "good", "nets/crash": "crash", "refuted": "refuted", "unusable": "unusable"}
    place, page = folder(tmp_path, **ends), tmp_path / "pages" / "all.html"
    page.parent.mkdir()
    for more in ((), ("--resume",)):
        page.unlink(missing_ok=True)
        run(place, "--html", str(page), *more)
        links = re.findall(r'<a href="([^"#]+)">([^<]+)</a>', page.read_text(encoding="utf-8"))
        assert {name for _, name in links} == ends.keys()
        texts = {name: (page.parent / link).read_text(encoding="utf-8") for link, name in links}
        assert "SIGSEGV" in texts["nets/crash"]
        assert '<p class="value">refuted</p>' in texts["refuted"]
        assert "2.00x as fast as eager" in texts["good"]
    assert len(journal(place)) == len(ends)


@pytest.mark.slow
@pytest.mark.usefixtures("stand_in")
def test_a_run_that_tunes_has_two_turns(tmp_path: Path) -> None:
    place = folder(tmp_path, first="good", second="good")
    assert run(place, "--tune", "quick", "--jobs", "2")[0] == 0
    begins, ends = ([at for _, at in journal(place, event)] for event in ("turn", "back"))
    assert len(begins) == len(ends) == 4
    assert all(end < begin for end, begin in zip(sorted(ends), sorted(begins)[1:], strict=False))


def start_suite(place: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """A suite that an interrupt ends, also where the tests are a shell's background job."""
    program = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        f"import sys; sys.path.append({str(ROOT)!r}); "
        "from fusewright.cli import main; from fusewright.suite import process_runner as launch; "
        "launch.LEAVE_S, launch.PRELOAD = 1.0, (); "
        "from tests.support.suite_stand_in import stand_in; main.one_run = stand_in; main.main()"
    )
    words = ["suite", str(place), "--output", str(place.parent / "out"), "--no-timing", *arguments]
    return subprocess.Popen([sys.executable, "-c", program, *words], start_new_session=True)


def wait_for(place: Path, count: int, event: str) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if (place.parent / "journal").exists() and len(journal(place, event)) >= count:
            return
        time.sleep(0.05)
    raise AssertionError(f"fewer than {count} times {event}")


@pytest.mark.slow
@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_kill_loses_only_what_was_running(tmp_path: Path, number: int) -> None:
    names = [f"p{k}" for k in range(6)]
    place = folder(tmp_path, **dict.fromkeys(names, "held"))
    suite = start_suite(place)
    wait_for(place, 3, "start")
    os.kill(suite.pid, number)
    code = suite.wait(30)
    assert code == (130 if number == signal.SIGINT else -signal.SIGKILL)
    done = names[:2]
    time.sleep(3.0)
    (tmp_path / "go").touch()
    time.sleep(0.5)
    assert [name for name, _ in journal(place, "end")] == done, "what was running is killed, too"
    code, rows = run(place, "--no-timing", "--resume")
    assert code == 0
    assert sorted(rows) == names
    again = [name for name, _ in journal(place)].count
    assert all(again(name) == 1 for name in done), "they were finished"
    assert sum(map(again, names)) <= 7, "only the one in flight is run again"


@pytest.mark.slow
@pytest.mark.usefixtures("stand_in")
def test_a_run_times_alone(tmp_path: Path) -> None:
    names = [f"p{k}" for k in range(6)]
    place = folder(tmp_path, **dict.fromkeys(names, "good"))
    code, rows = run(place, "--jobs", "3")
    assert code == 0
    at = {event: dict(journal(place, event)) for event in EVENTS}
    for one, other in itertools.permutations(names, 2):
        alone = at["turn"][one], at["back"][one]
        for first, last in itertools.pairwise(EVENTS):
            apart = at[last][other] < alone[0] or alone[1] < at[first][other]
            assert apart or (first, last) == ("asked", "turn"), f"{other} {first} while {one} timed"
    assert rows["p0"]["ratios"] == {
        "eager": {"median": 2, "low": 1.5, "high": 2.5, "claim": "faster"}
    }
    assert rows["p0"]["roofline"] == pytest.approx(0.5)


@pytest.mark.slow
@pytest.mark.usefixtures("stand_in")
def test_what_had_too_little_memory_is_run_again_alone(tmp_path: Path) -> None:
    names = [f"p{k}" for k in range(4)]
    behaviours = dict.fromkeys(names, "good") | dict.fromkeys(("q0", "q1"), "crowded")
    place = folder(tmp_path, **behaviours)
    code, rows = run(place, "--jobs", "3")
    assert code == 0
    assert {row["verdict"] for row in rows.values()} == {"verified"}
    runs = list[tuple[str, float, float]]()
    for name in behaviours:
        starts, ends = ([at for n, at in journal(place, e) if n == name] for e in ("start", "end"))
        runs += [(name, *both) for both in zip(starts, ends, strict=True)]
    assert sorted(name for name, *_ in runs) == [*names, "q0", "q0", "q1", "q1"]
    for name in ("q0", "q1"):
        _, first, last = max(r for r in runs if r[0] == name)
        others = [r for r in runs if r[1:] != (first, last)]
        assert all(end < first or last < start for _, start, end in others), name


@pytest.mark.slow
@pytest.mark.usefixtures("stand_in")
def test_what_has_too_little_memory_alone_says_so(tmp_path: Path) -> None:
    place = folder(tmp_path, p="memory", q="good")
    _, rows = run(place, "--jobs", "2")
    assert rows["p"]["end"] == "out of memory"
    assert "run twice, the second time alone" in str(rows["p"]["reason"])
    assert [name for name, _ in journal(place)].count("p") == 2


@pytest.mark.slow
@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize("target", [(), ("--target", "cpu")])
def test_every_gpu_of_the_machine_is_used(
    tmp_path: Path, target: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b")
    names = [f"p{k}" for k in range(6)]
    place = folder(tmp_path, **dict.fromkeys(names, "slow"))
    assert run(place, "--jobs", "4", "--no-timing", *target)[0] == 0
    on = {gpu: {name for name, _ in journal(place, f"on-GPU-{gpu}")} for gpu in "ab"}
    if target:
        assert on == {"a": set(), "b": set()}
        return
    assert on["a"] | on["b"] == set(names)
    assert not on["a"] & on["b"]
    starts, ends = (dict(journal(place, event)) for event in ("start", "end"))
    for gpu in on.values():
        for name in gpu:
            beside = [n for n in gpu if starts[n] <= starts[name] < ends[n]]
            assert len(beside) <= 2, "four runs are two on each"


@pytest.mark.slow
def test_gpus_are_those_of_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpus() == ()
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho GPU-1\necho GPU-2\n")
    tool.chmod(0o755)
    assert gpus() == ("GPU-1", "GPU-2")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert gpus() == ("1",)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert gpus() == ()


@pytest.mark.slow
@pytest.mark.usefixtures("stand_in")
def test_the_limit_does_not_run_while_a_run_waits(tmp_path: Path) -> None:
    """Eight turns of 0.3 s, one after the other, under a limit of 2 s."""
    names = [f"p{k}" for k in range(8)]
    place = folder(tmp_path, **dict.fromkeys(names, "good"))
    assert run(place, "--jobs", "8", "--timeout", "2")[0] == 0


@pytest.mark.slow
@pytest.mark.usefixtures("stand_in")
def test_runs_that_need_all_memory_are_alone_with_it(tmp_path: Path) -> None:
    place = folder(tmp_path, **dict.fromkeys(("a", "b", "c"), "hungry"))
    assert run(place, "--jobs", "3", "--no-timing")[0] == 0
    assert len(journal(place, "asked")) == 3
    every = [(at, event) for event in ("asked", "end") for _, at in journal(place, event)]
    assert [event for _, event in sorted(every)] == ["asked", "end"] * 3


@pytest.mark.slow
def test_machine() -> None:
    machine, order = TimingLock(), []
    inside = threading.Event()

    def times() -> None:
        with machine.working(), machine.alone():
            order.append("alone")
            inside.set()
            time.sleep(0.2)
            order.append("over")

    def works() -> None:
        inside.wait()
        with machine.working():
            order.append("works")

    threads = [threading.Thread(target=t) for t in (times, works)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert order == ["alone", "over", "works"]


@pytest.mark.slow
def test_an_emptied_machine_has_one_run_which_may_time_calls() -> None:
    machine, order = TimingLock(), []
    begun = threading.Event()

    def short() -> None:
        begun.wait()
        with machine.emptied():
            order.append("alone")
            with machine.alone():
                time.sleep(0.2)
            order.append("over")

    def works() -> None:
        with machine.working():
            begun.set()
            time.sleep(0.2)
            order.append("before")
        time.sleep(0.05)
        with machine.working():
            order.append("after")

    threads = [threading.Thread(target=t) for t in (short, works)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert order == ["before", "alone", "over", "after"]


@pytest.mark.judged
def test_the_judge_times_within_its_turn(tmp_path: Path) -> None:
    problem = PROBLEMS / "linear_relu.py"
    candidate = tmp_path / "candidate.py"
    candidate.write_text(problem.read_text().replace("class Model(", "class ModelNew("))
    events: list[str] = []

    @contextmanager
    def turn() -> Iterator[None]:
        events.append("my turn")
        yield
        events.append("over")

    verdict = judge(
        problem,
        candidate,
        against=("eager",),
        budget_s=0.5,
        turn=turn,
        progress=events.append,
    )
    assert verdict.timing is not None, verdict.reason
    begun, *turn_of_last = events[-3:]
    assert (begun.startswith("timing: process"), turn_of_last) == (True, ["my turn", "over"])
    assert events.count("my turn") == events.count("over") >= FEWEST_PROCESSES, (
        "one of each process"
    )


@pytest.mark.slow
@pytest.mark.usefixtures("stand_in")
def test_equal_names_and_equal_files(tmp_path: Path) -> None:
    place = folder(tmp_path, **{"a/same": "good", "b/same": "refuted"})
    (place / "copy.py").write_bytes((place / "a" / "same.py").read_bytes())
    code, rows = run(place, "--no-timing")
    assert code == 1
    found = {name: row["verdict"] for name, row in rows.items()}
    assert found == {"a/same": "verified", "b/same": "refuted", "copy": "verified"}
    assert len(journal(place)) == 2, "the same content is run once"
    assert (tmp_path / "out" / "b" / "same.log").is_file()


@pytest.mark.slow
@pytest.mark.usefixtures("stand_in")
def test_unreadable_files_are_rows(tmp_path: Path) -> None:
    place = folder(tmp_path, good="good")
    (place / "gone.py").symlink_to(place / "nowhere")
    (place / "folder.py").mkdir()
    code, rows = run(place, "--no-timing")
    assert code == 3
    assert {name: row["end"] for name, row in rows.items()} == {
        "folder": "unreadable", "gone": "unreadable", "good": "",
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.usefixtures("stand_in")
def test_a_place_that_cannot_be_written_is_a_row(tmp_path: Path) -> None:
    place = folder(tmp_path, **{"a/one": "good", "b/two": "good"})
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "a").write_text("where a folder should be")
    code, rows = run(place, "--no-timing")
    assert code == 3
    assert [rows[name]["verdict"] for name in ("a/one", "b/two")] == ["not-verified", "verified"]
    assert "cannot start" in str(rows["a/one"]["reason"])


@pytest.mark.slow
@pytest.mark.usefixtures("stand_in")
def test_a_full_disk_is_tried_again(tmp_path: Path) -> None:
    place = folder(tmp_path, full="full", crash="crash")
    for resume in ([], ["--resume"]):
        assert run(place, "--no-timing", *resume)[1]["full"]["end"] == "disk full"
    assert [name for name, _ in journal(place)] == ["crash", "full", "full"]


@pytest.mark.slow
@pytest.mark.usefixtures("stand_in")
def test_a_full_disk_loses_no_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place = folder(tmp_path, first="good", second="good")
    monkeypatch.setattr(ResultsDb, "put", lambda *_: "database or disk is full")
    code, rows = run(place, "--no-timing")
    assert (code, len(rows)) == (0, 2)
    assert "disk is full" in capsys.readouterr().err


@pytest.mark.slow
def test_the_store_says_when_the_disk_is_full(tmp_path: Path) -> None:
    result = SuiteRow("x" * 100_000, "verified", "fine", times={"eager": 1.0})
    with ResultsDb(tmp_path / "results.sqlite") as store:
        store._connection.execute("PRAGMA max_page_count = 4")
        assert "full" in store.put("key", asdict(result))
        assert store.get("key") is None


@pytest.mark.slow
def test_the_store_keeps_every_field(tmp_path: Path) -> None:
    ratios = {"eager": SpeedRatio(2.0, 1.5, 2.5, "faster")}
    result = SuiteRow(
        "x", "refuted", "no", "", 1e-7, None, {"eager": 1.0}, ratios, 0.5, 1, 2, 3, ("mm",)
    )
    for _ in range(2):
        with ResultsDb(tmp_path / "results.sqlite") as store:
            assert store.put("key", asdict(result)) == ""
            assert kept_row(store.get("key") or {}) == result
            assert store.get("other") is None


@pytest.mark.slow
def test_a_store_that_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = folder(tmp_path, good="good")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "results.sqlite").write_text("not a database" * 100)
    with pytest.raises(SystemExit) as end:
        main.app(["suite", str(place), "--output", str(tmp_path / "out")], prog_name="fusewright")
    assert end.value.code == 2
    assert "results.sqlite" in capsys.readouterr().err


@pytest.mark.slow
def test_totals() -> None:
    def row(name: str, median: float, claim: str, verdict: str = "verified") -> SuiteRow:
        ratios = {"eager": SpeedRatio(median, median, median, claim)}
        return SuiteRow(name, verdict, "", ratios=ratios, library_operators=("mm",))  # type: ignore[arg-type]

    rows = [row("a", 4.0, "faster"), row("b", 1.0, "no difference shown"), row("c", 9.0, "faster")]
    summed = totals([*rows, row("d", 100.0, "faster", "refuted")])
    assert summed.means == {"eager": pytest.approx(36 ** (1 / 3))}, (
        "a refuted row counts for nothing"
    )
    assert summed.faster["eager"] == 2
    assert summed.library == {"mm": 4}
    assert summed.exit_code == 1


@pytest.mark.slow
def test_degenerate_is_no_success() -> None:
    ratios = {"eager": SpeedRatio(50.0, 40.0, 60.0, "faster")}
    row = SuiteRow("constant", "verified", "fine", ratios=ratios, degenerate=True)
    assert row.word == "verified (degenerate)"
    assert totals([row]).means == {}
    assert totals([row]).faster["eager"] == 0


@pytest.mark.slow
def test_the_real_thing(tmp_path: Path) -> None:
    """Four problem files through the whole compiler and the judge."""
    place = tmp_path / "problems"
    place.mkdir()
    for name, forward, size in (
        ("fine", "return torch.relu(x) * 2.0", "16"),
        ("crashes", CRASHES, "16"),
        ("huge", "return x", "10**14"),
        ("constant", "return torch.zeros_like(x) + 1.0", "16"),
    ):
        (place / f"{name}.py").write_text(TINY.format(forward=forward, size=size))
    code, rows = run(place, "--no-timing", "--target", "cpu", "--jobs", "2")
    assert code == 3
    assert {name: (row["verdict"], row["end"]) for name, row in rows.items()} == {
        "fine": ("verified", ""),
        "crashes": ("not-verified", "crashed"),
        "huge": ("not-verified", "out of memory"),
        "constant": ("verified", ""),
    }
    assert [name for name, row in rows.items() if row["degenerate"]] == ["constant"]
    assert rows["fine"]["fused_operators"] == 2
    assert rows["fine"]["error"] == 0.0
