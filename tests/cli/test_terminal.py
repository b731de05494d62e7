"""What a person at a terminal, and a script, get of commands: streams, colours, Ctrl-C, time."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from fusewright import __version__
from fusewright.common.budget import LONGEST_TIMING_S, Budget
from fusewright.judge import judge
from fusewright.judge.session import OUT_OF_BUDGET
from tests.support.folders import ROOT

PROBLEM = """
import os
import torch
import torch.nn as nn

print("the problem speaks")
os.system("echo a child speaks")
os.write(1, b"a library speaks\\n")

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 64)

    def forward(self, x):
        return torch.sigmoid(self.linear(x)) * 2.0 + 1.0

def get_inputs():
    return [torch.randn(16, 64)]
"""
QUIET = re.sub(r"^(print|os\.).*$", "", PROBLEM, flags=re.MULTILINE)
CHECKED = ("--target", "cpu", "--no-timing")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "problem.py").write_text(QUIET)
    (tmp_path / "loud.py").write_text(PROBLEM)
    (tmp_path / "candidate.py").write_text(QUIET.replace("class Model(", "class ModelNew("))
    return tmp_path


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "fusewright", *words]


def surroundings(**variables: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    return {**kept, "PYTHONPATH": str(ROOT), **variables}


def ran(place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*words), cwd=place, env=surroundings(), capture_output=True, text=True,
        check=False, timeout=280,
    )  # fmt: skip


def test_version(place: Path) -> None:
    done = ran(place, "--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"fusewright {__version__}\n", "")


@pytest.mark.slow
@pytest.mark.parametrize("words", [("--json",), ("--report", "-"), ("--json", "-v")], ids=str)
def test_json_alone_is_on_standard_output(place: Path, words: tuple[str, ...]) -> None:
    out = ("-o", "new.py", "--target", "cpu", "--no-verify")
    done = ran(place, "optimize", "loud.py", *out, *words)
    report = json.loads(done.stdout)
    assert done.returncode == 3
    assert (report["verdict"], report["path"]) == ("not-verified", "new.py")
    (forward,) = report["forwards"]
    assert [row["places"] for row in forward["rows"] if row["name"]] == [
        ["sigmoid (line 16)", "mul (line 16)", "add (line 16)"]
    ]
    for who in ("the problem", "a child", "a library"):
        assert f"{who} speaks" in done.stderr
    assert not list(place.glob("-*")), "- is no file"


@pytest.mark.slow
def test_json_says_why_there_is_no_result(place: Path) -> None:
    (place / "wrong.py").write_text("x = 1\n")
    done = ran(place, "optimize", "wrong.py", "--target", "cpu", "--json")
    assert done.returncode == 2
    assert "wrong.py" in json.loads(done.stdout)["reason"]
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
@pytest.mark.judged
@pytest.mark.compiler
def test_quiet_is_one_line_and_a_pipe_sees_no_progress(place: Path) -> None:
    done = ran(place, "optimize", "problem.py", *CHECKED, "-q", "-o", "new.py")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "verified: new.py\n"
    loud = ran(place, "judge", "problem.py", "new.py", "--device", "cpu", "--no-timing")
    assert (loud.returncode, loud.stderr) == (0, "")
    first, *others = loud.stdout.splitlines()
    assert first == "verified: right; not timed"
    assert len(others) < 10
    assert all(len(line) <= 80 for line in others)
    full = ran(place, "judge", "problem.py", "new.py", "--device", "cpu", "--no-timing", "-v")
    assert "pass self-canary" in full.stdout
    assert "  judging: values, unusual inputs, modes and repeated calls ...\n" in full.stderr


def on_a_terminal(place: Path, *words: str, **variables: str) -> str:
    """What a command writes to a terminal."""
    ours, theirs = pty.openpty()
    environment = surroundings(TERM="xterm-256color", COLUMNS="80", **variables)
    process = subprocess.Popen(
        command(*words), cwd=place, env=environment, stdout=theirs, stderr=theirs, stdin=theirs
    )
    os.close(theirs)
    said = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # Linux says so when the last writer has gone
            break
        if not part:
            break
        said += part
    os.close(ours)
    process.wait(timeout=60)
    return said.decode()


COLOUR = re.compile(r"\x1b\[[0-9;]*(?:3[0-7]|38|9[0-7])[0-9;]*m")


@pytest.mark.slow
def test_colours_only_where_they_are_wanted(place: Path) -> None:
    words = ("optimize", "problem.py", "--target", "cpu", "--no-verify", "--force")
    coloured = on_a_terminal(place, *words)
    assert COLOUR.search(coloured)
    assert "  capturing the model (" in coloured, "progress"
    plain = on_a_terminal(place, *words, NO_COLOR="1")
    assert not COLOUR.search(plain)
    assert "capturing the model (" in plain
    assert "\x1b" not in ran(place, *words).stdout
    assert "capturing" not in on_a_terminal(place, *words, "-q")


@pytest.mark.slow
@pytest.mark.judged
def test_a_seed_gives_the_same_inputs_again(place: Path) -> None:
    def errors(seed: str) -> Any:
        words = ("--device", "cpu", "--no-timing", "--json", "--seed", seed)
        report = json.loads(ran(place, "judge", "problem.py", "candidate.py", *words).stdout)
        assert report["verdict"] == "verified"
        assert report["replay"]["seed"] == f"{int(seed):032x}"
        return report["accuracy"]

    first = errors("7")
    assert errors("7") == first
    assert errors("8") != first


class TestBudget:
    def test_what_it_gives(self) -> None:
        budget = Budget(100.0, 1000.0)
        assert (budget.level, budget.tuning_s, budget.timing_s) == ("quick", 30.0, 15.0)
        assert (budget.checks_end, budget.end) == (1085.0, 1100.0)
        assert Budget(10.0, 0.0).level == "off"
        assert Budget(600.0, 0.0).level == "full"
        assert Budget(3600.0, 0.0).timing_s == LONGEST_TIMING_S

    @pytest.mark.slow
    @pytest.mark.judged
    def test_what_is_not_checked_in_time_is_not_verified(self, place: Path) -> None:
        problem, candidate = place / "problem.py", place / "candidate.py"
        verdict = judge(problem, candidate, deadline=time.monotonic() - 1.0)
        assert (verdict.verdict, verdict.reason) == ("not-verified", OUT_OF_BUDGET)
        assert verdict.timing is None, "there is no time for that either"

    @pytest.mark.slow
    @pytest.mark.judged
    @pytest.mark.compiler
    def test_a_run_keeps_to_it(self, place: Path) -> None:
        """Approximately: a machine may be busy, and what is under way is not cut short."""
        begin = time.monotonic()
        words = ("--target", "cpu", "--budget", "45s", "--json")
        done = ran(place, "optimize", "problem.py", *words)
        took = time.monotonic() - begin
        report = json.loads(done.stdout)
        assert took < 75.0
        assert report["verdict"] == "verified" or report["reason"] == OUT_OF_BUDGET


@pytest.mark.slow
@pytest.mark.judged
@pytest.mark.compiler
@pytest.mark.parametrize("old", [None, "precious = True\n"], ids=["no file", "an older file"])
def test_what_is_interrupted_leaves_nothing_unverified(place: Path, old: str | None) -> None:
    out = place / "new.py"
    if old is not None:
        out.write_text(old)
    before = sorted(path.name for path in place.iterdir())
    process = subprocess.Popen(
        command("optimize", "problem.py", *CHECKED, "-v", "--force", "-o", "new.py"), cwd=place,
        env=surroundings(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("  judging: values"):
            break
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    said, told = process.communicate(timeout=60)
    assert process.returncode == 130
    assert said == ""
    paragraphs = [line for line in told.splitlines() if line.startswith("fusewright: ")]
    assert paragraphs == ["fusewright: interrupted; what was not verified is not written."]
    assert "Traceback" not in told
    assert sorted(path.name for path in place.iterdir()) == before
    assert old is None or out.read_text() == old
