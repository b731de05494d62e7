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


def test_a_bar_counts_and_says_what_is_done() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    with bar(console, 2) as step:
        step("first: [verified]")
        step("second: refuted; mean 1.250x")
    shown = "\n".join(lines(console))
    assert "2/2" in shown
    assert "second: refuted; mean 1.250x" in shown


def test_a_bar_is_silent_where_there_is_no_terminal() -> None:
    console = Console(file=io.StringIO(), width=80)
    with bar(console, 1) as step:
        step("first: verified")
    assert lines(console) == []
