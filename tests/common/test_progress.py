"""Progress: lines with times on a terminal, silence elsewhere."""

from __future__ import annotations

import io
import re
import time

import pytest
from rich.console import Console

from fusewright.common.progress import Left, bar, progress


def lines(console: Console) -> list[str]:
    assert isinstance(console.file, io.StringIO)
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", console.file.getvalue()).splitlines()


def test_each_step_ends_with_its_time() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    with progress(console) as step:
        step("capture [graph]")
        step("build")
    finished = [line.strip() for line in lines(console) if re.search(r"\(\d+\.\d s\)$", line)]
    assert [line.rpartition(" (")[0] for line in finished] == ["capture [graph]", "build"]


def test_a_step_says_its_share_and_what_is_left_and_is_one_step() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    with progress(console) as step:
        assert isinstance(step, Left)
        step("hazards")
        step.left(0.25, 31.0)
        time.sleep(0.3)  # the line is drawn some times a second
        step.left(0.5, 12.4)
        time.sleep(0.3)
    shown = "\n".join(lines(console))
    assert "hazards: 25% done, about 30 s left" in shown
    assert "hazards: 50% done, about 12 s left" in shown
    assert len([line for line in lines(console) if re.search(r"\(\d+\.\d s\)$", line)]) == 1


def test_a_failed_step_is_not_shown_as_done() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=80)

    def fail() -> None:
        with progress(console) as step:
            step("capture")
            step("build")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    finished = [line for line in lines(console) if re.search(r"\(\d+\.\d s\)$", line)]
    assert len(finished) == 1
    assert "capture" in finished[0]


def test_quiet_without_a_terminal() -> None:
    console = Console(file=io.StringIO(), force_terminal=False)
    with progress(console) as step:
        step("capture")
    assert lines(console) == []


def test_in_lines_each_step_is_said_when_it_begins() -> None:
    console = Console(file=io.StringIO(), force_terminal=False)
    with progress(console, lines=True) as step:
        step("capture [graph]")
        assert lines(console) == ["  capture [graph] ..."]
        step("build")
    assert lines(console) == ["  capture [graph] ...", "  build ..."]


def test_a_bar_names_what_is_at_hand_and_not_what_is_over() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    with bar(console, 2) as shown:
        shown.begin("first [a]")
        time.sleep(0.3)  # the line is drawn some times a second
        assert "first [a]" in lines(console)[-1]
        shown.end("first [a]", "1 verified")
        shown.begin("second")
        time.sleep(0.3)
        assert "second; 1 verified" in lines(console)[-1]
        assert "first" not in lines(console)[-1]
        shown.end("second", "1 verified, 1 refuted, mean 1.250x")
    last = "\n".join(lines(console))
    assert "2/2" in last
    assert "1 verified, 1 refuted, mean 1.250x" in last


def test_a_bar_counts_what_runs_side_by_side() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    with bar(console, 3) as shown:
        for name in ("first", "second", "third"):
            shown.begin(name)
        time.sleep(0.3)
        assert "third and 2 more" in lines(console)[-1]
        shown.end("third", "1 verified")
        time.sleep(0.3)
        assert "second and 1 more; 1 verified" in lines(console)[-1]


@pytest.mark.parametrize(("terminal", "quiet"), [(False, False), (True, True)])
def test_a_bar_is_silent(terminal: bool, quiet: bool) -> None:
    console = Console(file=io.StringIO(), force_terminal=terminal, width=80)
    with bar(console, 1, quiet=quiet) as shown:
        shown.begin("first")
        shown.end("first", "1 verified")
    assert not "".join(lines(console)).strip()
