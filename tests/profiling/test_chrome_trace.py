"""Calls of several sides -> one trace that viewers take."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fusewright.profiling.chrome_trace import PAUSE_US, chrome_trace
from fusewright.profiling.recorded import CALL, KERNEL, recorded_calls
from tests.support.profiler import entry, kernel, launch, text

FAST = text(
    entry(CALL, 0, 50),
    entry(f"{KERNEL}norm", 5, 10),
    launch(6, 1),
    kernel("norm_rows", 20, 10, 1),
    entry(CALL, 1000, 40),
    entry("aten::exp", 1010, 5),
)
SLOW = text(
    entry(CALL, 0, 90),
    entry("aten::linear", 5, 80),
    entry("aten::mm", 10, 70),
    entry(CALL, 7000, 80),
)


def made() -> list[dict[str, Any]]:
    sides = {"candidate": recorded_calls(FAST, "candidate"), "eager": recorded_calls(SLOW, "eager")}
    trace = json.loads(chrome_trace(sides))
    entries: list[dict[str, Any]] = trace["traceEvents"]
    return entries


def test_entries_have_what_viewers_need() -> None:
    for one in made():
        assert one["ph"] in ("X", "M")
        assert isinstance(one["name"], str)
        assert isinstance(one["pid"], int)
        assert isinstance(one["tid"], int)
        if one["ph"] == "X":
            assert one["ts"] >= 0
            assert one["dur"] >= 0


def test_each_side_is_a_process_with_its_name() -> None:
    names = {e["pid"]: e["args"]["name"] for e in made() if e["name"] == "process_name"}
    assert names == {1: "candidate", 2: "eager"}
    told = [e for e in made() if e["name"] == "thread_name"]
    threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in told}
    assert threads == {(1, 0): "host", (1, 8): "stream 7", (2, 0): "host"}


def test_calls_of_the_same_number_begin_together() -> None:
    calls = {(e["name"], e["pid"]): e["ts"] for e in made() if e.get("cat") == "call"}
    second = 90 + PAUSE_US
    assert calls == pytest.approx(
        {("call 1", 1): 0, ("call 1", 2): 0, ("call 2", 1): second, ("call 2", 2): second}, abs=0.01
    )


def test_events_have_their_places() -> None:
    found = {e["name"]: e for e in made() if e["ph"] == "X" and e["cat"] != "call"}
    assert found.keys() == {
        "norm", "cudaLaunchKernel", "norm_rows", "aten::exp", "aten::linear", "aten::mm",
    }  # fmt: skip
    assert found["norm_rows"]["args"] == {"step": "norm", "call": 1}
    assert (found["norm_rows"]["ts"], found["norm_rows"]["tid"]) == (pytest.approx(20, abs=0.01), 8)
    assert found["aten::exp"]["ts"] == pytest.approx(90 + PAUSE_US + 10, abs=0.01)
    assert found["norm"]["cat"] == "kernel"


def test_nothing_was_profiled() -> None:
    assert json.loads(chrome_trace({}))["traceEvents"] == []
