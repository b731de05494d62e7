"""What the profiler writes -> calls: what belongs to which, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fusewright.errors import NotVerifiable
from fusewright.profiling.recorded import CALL, DEEPEST, KERNEL, recorded_calls
from tests.support.profiler import entry, kernel, launch, text


def test_events_lie_inside_each_other() -> None:
    (call,) = recorded_calls(
        text(
            entry("aten::addmm", 12, 30),
            entry(CALL, 0, 100),
            entry("aten::linear", 10, 40),
            entry("aten::relu", 60, 5),
            entry("aten::late", 130, 5),
        ),
        "eager",
    )
    assert call.us == pytest.approx(100)
    linear, relu = call.host
    assert (linear.event.name, relu.event.name) == ("aten::linear", "aten::relu")
    assert [inner.event.name for inner in linear.inside] == ["aten::addmm"]
    assert linear.event.begin_us == pytest.approx(10, abs=0.01), "counted from the call's beginning"


def test_each_call_has_its_own() -> None:
    calls = recorded_calls(
        text(
            entry(CALL, 200, 50),
            entry("aten::exp", 210, 5),
            entry(CALL, 0, 50),
            entry("aten::add", 10, 5),
            entry("aten::exp", 100, 5),
        ),
        "eager",
    )
    assert [[nest.event.name for nest in call.host] for call in calls] == [
        ["aten::add"],
        ["aten::exp"],
    ]


def test_other_threads_are_left_out() -> None:
    (call,) = recorded_calls(
        text(entry(CALL, 0, 50), entry("aten::exp", 5, 5, tid=2), entry("aten::add", 5, 5)), "eager"
    )
    assert [nest.event.name for nest in call.host] == ["aten::add"]


def test_work_of_the_device_is_whose_launch_asked_for_it() -> None:
    """Also where it runs after the call has returned, and not where another call had asked."""
    first, second = recorded_calls(
        text(
            entry(CALL, 0, 50),
            entry(f"{KERNEL}softmax", 5, 20),
            launch(8, 7),
            launch(15, 8),
            entry("aten::mm", 30, 10),
            launch(32, 9),
            entry(CALL, 100, 50),
            launch(110, 10),
            kernel("part_one", 60, 10, 7),
            kernel("part_two", 75, 10, 8),
            kernel("gemm", 105, 10, 9, stream=13),
            kernel("alone", 120, 10, 10),
            kernel("of nobody", 125, 10, 99),
        ),
        "candidate",
    )
    told = [(a.event.name, a.kernel, a.operator, a.event.lane) for a in first.device]
    assert told == [
        ("part_one", "softmax", "", 7),
        ("part_two", "softmax", "", 7),
        ("gemm", "", "aten::mm", 13),
    ]
    assert first.device[0].run == first.device[1].run, "one run of the same function"
    assert first.device[2].event.begin_us == pytest.approx(105)
    assert [(a.event.name, a.kernel, a.operator) for a in second.device] == [("alone", "", "")]


def test_names_cannot_speak_to_a_terminal() -> None:
    (call,) = recorded_calls(text(entry(CALL, 0, 50), entry("x::\x1b[2J\n", 5, 5)), "candidate")
    assert call.host[0].event.name == "x::?[2J?"


DEEP = [entry("x::y", 1 + k / 10, 90 - k / 5) for k in range(DEEPEST + 1)]
REFUSED: dict[str, bytes] = {
    "no JSON": b"{",
    "no bytes of text": b"\xff\xfe\x00",
    "another JSON": b"[1]",
    "no events": b"{}",
    "nested without end": b'{"traceEvents": ' + b"[" * 100_000,
    "a time that is none": text(entry(CALL, 0, float("nan"))),
    "a negative time": text(entry(CALL, 0, -1)),
    "no time": json.dumps({"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "x"}]}).encode(),
    "calls that overlap": text(entry(CALL, 0, 50), entry(CALL, 20, 50)),
    "too deep": text(entry(CALL, 0, 100), *DEEP),
}


@pytest.mark.parametrize("what", REFUSED)
def test_another_form_is_refused(what: str) -> None:
    with pytest.raises(NotVerifiable, match="profile of candidate is not of the form"):
        recorded_calls(REFUSED[what], "candidate")


def test_a_profile_of_this_pytorch_is_read(tmp_path: Path) -> None:
    """Of a processor: what the profiler of this machine writes has the form that is expected."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    in_range: Any = torch._C._profiler._RecordFunctionFast
    x = torch.randn(64, 64)
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        for _ in range(2):
            with in_range(CALL):
                torch.relu(x)
                with in_range(f"{KERNEL}mine"):
                    torch.mm(x, x)
    seen.export_chrome_trace(str(tmp_path / "trace.json"))
    calls = recorded_calls((tmp_path / "trace.json").read_bytes(), "eager")
    assert len(calls) == 2
    for call in calls:
        relu, mine = call.host
        assert (relu.event.kind, relu.event.name) == ("operator", "aten::relu")
        assert (mine.event.kind, mine.event.name) == ("kernel", f"{KERNEL}mine")
        assert [inner.event.name for inner in mine.inside] == ["aten::mm"]
        assert mine.event.end_us <= call.us
