"""The arena as a command, with stand-ins for the judge and for the timing."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from fusewright.arena import run_arena
from fusewright.arena.entries import Entry
from fusewright.cli import main
from fusewright.suite.results_db import ResultsDb
from fusewright.suite.run_end import RunEnd
from fusewright.suite.runner import Command, Work
from tests.support import arena_stand_in
from tests.support.arena_stand_in import contest_of

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main, "one_run", arena_stand_in.stand_in)


def arena(root: Path, entries: Mapping[str, str], *more: str) -> tuple[int, dict[str, Any]]:
    """The exit code and the report, of candidates by their paths."""
    for name in {path.partition("/")[0] for path in entries}:
        (root / "problems").mkdir(exist_ok=True)
        (root / "problems" / f"{name}.py").write_text(f"# {name}\n")
    for path, worth in entries.items():
        file = root / "candidates" / f"{path}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"# {worth}\n")
    words = ["arena", str(root / "problems"), str(root / "candidates"), *more]
    words += ["--output", str(root / "out"), "--report", str(root / "r.json"), "--device", "cpu"]
    with pytest.raises(SystemExit) as end:
        main.app(words, prog_name="fusewright")
    assert isinstance(end.value.code, int)
    return end.value.code, json.loads((root / "r.json").read_text(encoding="utf-8"))


def rows(report: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    return {f"{row['problem']}/{row['entrant']}": row for row in report["rows"]}


def journal(root: Path) -> list[str]:
    file = root / "journal"
    return file.read_text(encoding="utf-8").splitlines() if file.exists() else []


MIXED = {
    "norm/ann": "right 2.0",
    "norm/bob": "right 3.0",
    "norm/cid": "wrong",
    "norm/dot": "right 2.98",
    "norm/eve": "breaks",
    "softmax/ann": "right 1.05",
    "softmax/bob": "wrong",
}


def test_the_right_ones_are_ranked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, report = arena(tmp_path, MIXED, "--html", str(tmp_path / "r.html"))
    assert code == 0, "all have a verdict"
    found = rows(report)
    places = {name: row["place"] for name, row in found.items()}
    assert places == {
        "norm/bob": 1,
        "norm/dot": 1,  # nobody can tell it from the first
        "norm/ann": 3,
        "norm/cid": 0,
        "norm/eve": 0,
        "softmax/ann": 1,
        "softmax/bob": 0,
    }
    assert (found["norm/cid"]["verdict"], found["norm/eve"]["end"]) == ("refuted", "not timed")
    standings = {one["name"]: one for one in report["standings"]}
    assert [*standings] == ["ann", "bob", "dot", "eve", "cid"], "right most often, first places"
    assert (standings["ann"]["right"], standings["ann"]["faster"]) == (2, 1)
    assert standings["ann"]["mean"] == pytest.approx((2.0 * 1.05) ** 0.5)
    said = capsys.readouterr().out
    assert max(map(len, said.splitlines())) <= 80
    assert re.search(r"^1 +bob +verified", said, re.MULTILINE)
    assert "norm, eve: verified (not timed): it broke" in said
    long = {f"norm/{'a_long_name_of_somebody_' * 3}": "right 2.5"}
    arena(tmp_path, long)
    said = capsys.readouterr().out
    assert max(map(len, said.splitlines())) <= 80
    assert re.search(
        r"^3 +a_long\w+… +verified +400 us +2\.50x \[2\.25, 2\.75\] ", said, re.MULTILINE
    )
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert page.index("<h2>norm</h2>") < page.index("<h2>softmax</h2>")
    assert '<td class="bad">refuted</td>' in page
    assert page.count("<svg ") == 2, "the ratios of each problem"
    assert not re.search(r"(src|href)\s*=\s*[\"'](?!#|data:,)|@import|https?:", page)


def test_nothing_is_judged_or_timed_twice(tmp_path: Path) -> None:
    _, first = arena(tmp_path, MIXED)
    asked = journal(tmp_path)
    assert sorted(asked) == [
        "bench norm/ann.py norm/bob.py norm/dot.py norm/eve.py",
        "bench softmax/ann.py",
        *(f"judge {name}.py" for name in MIXED),
    ]
    _, again = arena(tmp_path, MIXED)
    assert rows(again) == rows(first)
    assert journal(tmp_path) == asked
    arena(tmp_path, {"softmax/bob": "right 4.0"})
    assert journal(tmp_path)[len(asked) :] == [
        "judge softmax/bob.py",
        "bench softmax/ann.py softmax/bob.py",
    ]


def test_what_got_no_verdict_is_asked_again(tmp_path: Path) -> None:
    entries = {"norm/ann": "crashes", "norm/bob": "unclear", "norm/cid": "right 1.5"}
    for _ in range(2):
        code, report = arena(tmp_path, entries, "--jobs", "2")
        assert code == 3
        found = rows(report)
        assert (found["norm/ann"]["verdict"], found["norm/ann"]["end"]) == (
            "not-verified",
            "crashed",
        )
        assert "SIGABRT" in found["norm/ann"]["reason"]
        assert found["norm/bob"]["verdict"] == "not-verified"
    asked = journal(tmp_path)
    assert asked.count("judge norm/ann.py") == asked.count("judge norm/bob.py") == 2
    assert asked.count("judge norm/cid.py") == asked.count("bench norm/cid.py") == 1


def test_clocks_that_contradict_each_other_are_asked_again(tmp_path: Path) -> None:
    for _ in range(2):
        _, report = arena(tmp_path, {"norm/ann": "right 2.0", "norm/bob": "odd"})
        assert rows(report)["norm/bob"]["end"] == "not timed"
    assert journal(tmp_path).count("bench norm/ann.py norm/bob.py") == 2


def test_what_cannot_be_kept_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ResultsDb, "put", lambda *_: "database or disk is full")
    code, report = arena(tmp_path, {"norm/ann": "right 2.0", "norm/bob": "wrong"})
    assert code == 0
    assert {row["verdict"] for row in report["rows"]} == {"verified", "refuted"}
    said = capsys.readouterr().err
    for name in ("norm/ann", "norm/bob", "timed/norm-1"):
        assert f"{name}: database or disk is full" in said


def test_a_verdict_does_not_depend_on_whether_it_is_timed(tmp_path: Path) -> None:
    entries = {"norm/ann": "right 2.0", "norm/bob": "right 1.0"}
    arena(tmp_path, entries, "--no-timing", "--timeout", "300")
    asked = journal(tmp_path)
    _, report = arena(tmp_path, entries)
    assert journal(tmp_path)[len(asked) :] == ["bench norm/ann.py norm/bob.py"]
    assert rows(report)["norm/ann"]["place"] == 1


def test_verdicts_only(tmp_path: Path) -> None:
    code, report = arena(tmp_path, MIXED, "--no-timing")
    assert code == 0
    assert not any(row["place"] for row in report["rows"])
    assert not any(line.startswith("bench") for line in journal(tmp_path))


def test_the_fastest_of_many_meet_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_arena, "MOST", 2)
    speeds = {"a": 1.0, "b": 2.0, "c": 4.0, "d": 3.0, "e": 3.9}
    entries = {f"norm/{name}": f"right {speed}" for name, speed in speeds.items()}
    _, report = arena(tmp_path, entries)
    benches = [line for line in journal(tmp_path) if line.startswith("bench")]
    assert [len(line.split()) - 1 for line in benches] == [2, 2, 1, 2]
    assert set(benches[-1].split()[1:]) == {"norm/c.py", "norm/e.py"}
    places = {name: row["place"] for name, row in rows(report).items()}
    assert places == {"norm/c": 1, "norm/e": 1, "norm/d": 3, "norm/b": 4, "norm/a": 5}


def test_a_kept_result_has_the_names_of_now(tmp_path: Path) -> None:
    """Two entrants with the same text have one verdict; each row says who it is of."""
    _, report = arena(tmp_path, {"norm/ann": "right 2.0", "norm/bob": "right 2.0"})
    assert {row["entrant"] for row in report["rows"]} == {"ann", "bob"}
    (tmp_path / "candidates" / "norm" / "ann.py").rename(
        tmp_path / "candidates" / "norm" / "cid.py"
    )
    _, report = arena(tmp_path, {"norm/bob": "right 2.0"})
    assert {row["entrant"] for row in report["rows"]} == {"bob", "cid"}
    assert all(row["place"] == 1 for row in report["rows"])


class MixedPlace:
    """A place with two kinds of machines, which takes what comes to each in turn."""

    machine, about = ("mixed",), MappingProxyType({})
    jobs = contests = 1

    def __init__(self) -> None:
        self.asked: list[str] = []
        self._next = itertools.cycle(("large", "small"))

    @contextmanager
    def open(self, work: Work) -> Iterator[MixedPlace]:
        yield self

    def has(self, device: str, /) -> bool:
        return device in ("large", "small")

    def stop(self) -> None:
        """Nothing runs."""

    def launch(self, command: Command) -> RunEnd:
        kind = command.device or next(self._next)
        if not command.timed:
            return RunEnd("", "", 0.1, {"verdict": "verified"}, "a node", kind)
        self.asked.append(command.device)
        speeds = {"a": "4.0", "d": "3.9"}
        told = contest_of({str(p): ["right", speeds.get(p.stem, "2")] for p in command.files[1:]})
        return RunEnd("", "", 0.1, {"timing": told}, "a node", kind)


def test_candidates_of_a_problem_are_timed_on_one_kind_of_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_arena, "MOST", 2)
    (tmp_path / "norm.py").write_text("# norm")
    entries = []
    for name in "abcd":
        (tmp_path / f"{name}.py").write_text(f"# {name}")
        paths = tmp_path / "norm.py", tmp_path / f"{name}.py"
        entries.append(Entry("norm", name, *paths, key=name))
    place = MixedPlace()
    options = run_arena.ArenaOptions()
    found, _ = run_arena.run_arena(entries, options, tmp_path / "out", print, place=place)
    assert place.asked[0] == ""
    (kind,) = {row.device for row in found}
    assert place.asked[1:] == [kind, kind]
    again, _ = run_arena.run_arena(entries, options, tmp_path / "out", print, place=place)
    assert again == found
    assert len(place.asked) == 3, "kept"
